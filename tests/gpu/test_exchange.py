"""Exchanges under horovodrun on GPUs: by NCCL where Horovod has it, else by CPU operations."""

import horovod.torch
import pytest
import tensorflow as tf
import torch

from tests.parallel.job import Job


@pytest.mark.parametrize("folder", ["cuda", "cuda_tensorflow"])
def test_exchange(folder, tmp_path, capsys):
    if horovod.torch.nccl_built() and torch.cuda.device_count() < 2:
        pytest.skip("this Horovod uses NCCL, which wants a GPU for each rank, and here is one")
    if folder == "cuda_tensorflow" and not tf.config.list_physical_devices("GPU"):
        pytest.skip("this TensorFlow sees no GPU: `make setup` installs tensorflow-cpu, replace it")
    report = Job(2, (f"tests/parallel/{folder}",)).run(tmp_path)
    with capsys.disabled():
        operations = "NCCL" if horovod.torch.nccl_built() else "CPU operations"
        print(f"\n  {folder}: exchange by {operations}: {report.summary()}")
    if not report.passed:
        pytest.fail(report.details(), pytrace=False)
