"""Every parallel test, in one job per framework, launcher and world size."""

import pytest

from tests.parallel.job import Job, missing

#: What depends on the number of ranks: the bits of the specification, sets of some of the ranks.
CORE = "specification or process_set"
#: For jobs of more ranks than run all tests.
LARGER = "specification or too_few_bits"

#: The device path of the adapters, with the kernels in Numba's CUDA simulator.
SIMULATED = {"NUMBA_ENABLE_CUDASIM": "1"}
SETTINGS = {
    "cuda": SIMULATED,
    "cuda_tensorflow": SIMULATED,
    "timeline": {"HOROVOD_TIMELINE": "DYNAMIC"},
}

JOBS = [
    ("torch", "gloo", 2, ""),
    ("tensorflow", "gloo", 2, ""),
    ("torch", "gloo", 3, CORE),
    ("tensorflow", "gloo", 3, CORE),
    ("cuda", "gloo", 2, ""),
]
REST = [
    ("torch", "gloo", 3, f"not ({CORE})"),
    ("tensorflow", "gloo", 3, f"not ({CORE})"),
    ("torch", "mpi", 2, ""),
    ("tensorflow", "mpi", 2, ""),
    ("torch", "mpi", 3, LARGER),
    ("torch", "gloo", 4, LARGER),
    ("torch", "gloo", 5, LARGER),
    ("cuda_tensorflow", "gloo", 2, ""),
    ("timeline", "gloo", 2, ""),
]
ALL = [pytest.param(*job) for job in JOBS] + [
    pytest.param(*job, marks=pytest.mark.extended) for job in REST
]


@pytest.mark.parallel
@pytest.mark.parametrize(("framework", "launcher", "np", "which"), ALL)
def test_job(framework, launcher, np, which, tmp_path, capsys, monkeypatch):
    reason = missing(launcher)
    if reason:
        pytest.skip(reason)
    for name, value in SETTINGS.get(framework, {}).items():
        monkeypatch.setenv(name, value)
    report = Job(np, (f"tests/parallel/{framework}", "-k", which), launcher).run(tmp_path)
    with capsys.disabled():
        print(f"\n  {framework}, {launcher}: {report.summary()}")
    if not report.passed:
        pytest.fail(report.details(), pytrace=False)
