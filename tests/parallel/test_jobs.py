"""Every parallel test, in one job per framework, launcher and world size."""

import pytest

from tests.parallel.job import Job, missing

JOBS = [
    pytest.param(framework, launcher, np, id=f"{framework}-{launcher}-{np}")
    for framework in ("torch", "tensorflow")
    for launcher, np in (("gloo", 2), ("gloo", 3), ("mpi", 2))
]


@pytest.mark.parallel
@pytest.mark.parametrize(("framework", "launcher", "np"), JOBS)
def test_job(framework, launcher, np, tmp_path, capsys):
    reason = missing(launcher)
    if reason:
        pytest.skip(reason)
    report = Job(np, (f"tests/parallel/{framework}",), launcher).run(tmp_path)
    with capsys.disabled():
        print(f"\n  {framework}, {launcher}: {report.summary()}")
    if not report.passed:
        pytest.fail(report.details(), pytrace=False)
