"""Every parallel test, in one job per framework, launcher and world size."""

import pytest

from tests.parallel.job import Job, missing

#: What depends on the number of ranks, for jobs of more of them than run all tests.
LARGER = "specification or too_few_bits"

JOBS = [
    pytest.param(framework, launcher, np, (), id=f"{framework}-{launcher}-{np}")
    for framework in ("torch", "tensorflow")
    for launcher, np in (("gloo", 2), ("gloo", 3), ("mpi", 2))
] + [
    pytest.param("torch", launcher, np, ("-k", LARGER), id=f"torch-{launcher}-{np}")
    for launcher, np in (("gloo", 4), ("mpi", 3), ("gloo", 5))
]
# The device path of the adapters, with the kernels in Numba's CUDA simulator.
JOBS += [
    pytest.param(folder, "gloo", 2, (), id=f"{folder}-gloo-2")
    for folder in ("cuda", "cuda_tensorflow")
]


@pytest.mark.parallel
@pytest.mark.parametrize(("framework", "launcher", "np", "options"), JOBS)
def test_job(framework, launcher, np, options, tmp_path, capsys, monkeypatch):
    reason = missing(launcher)
    if reason:
        pytest.skip(reason)
    if framework.startswith("cuda"):
        monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    report = Job(np, (f"tests/parallel/{framework}", *options), launcher).run(tmp_path)
    with capsys.disabled():
        print(f"\n  {framework}, {launcher}: {report.summary()}")
    if not report.passed:
        pytest.fail(report.details(), pytrace=False)
