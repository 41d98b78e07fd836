"""The adapter's device path: on a GPU, or with the kernels in Numba's CUDA simulator.

By hand: ``NUMBA_ENABLE_CUDASIM=1 make ptest T=tests/parallel/cuda``; on a GPU without the variable.
"""

import numba
import pytest
import torch

from tests.parallel.cuda.simulated import Simulated
from tests.parallel.places import simulated, watched

__all__ = ["simulated"]


@pytest.fixture(scope="session")
def hvd():
    import horovod.torch as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()


@pytest.fixture
def gpu(hvd):
    """Where tensors belong."""
    if numba.config.ENABLE_CUDASIM:
        return torch.device("cpu")
    return torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Where exchanges began; without a GPU, tensors of the host pass for those of one."""
    from horovod_gqsgd.torch import device

    return watched(monkeypatch, device, Simulated)
