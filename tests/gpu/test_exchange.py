"""Exchanges under horovodrun on GPUs: by NCCL where Horovod has it, else by CPU operations."""

import horovod.torch
import pytest
import torch

from tests.parallel.job import Job


def test_exchange(tmp_path, capsys):
    if horovod.torch.nccl_built() and torch.cuda.device_count() < 2:
        pytest.skip("this Horovod uses NCCL, which wants a GPU for each rank, and here is one")
    report = Job(2, ("tests/parallel/cuda",)).run(tmp_path)
    with capsys.disabled():
        operations = "NCCL" if horovod.torch.nccl_built() else "CPU operations"
        print(f"\n  exchange by {operations}: {report.summary()}")
    if not report.passed:
        pytest.fail(report.details(), pytrace=False)
