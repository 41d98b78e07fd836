"""The adapter's device path: on a GPU, or with the kernels in Numba's CUDA simulator.

By hand: ``NUMBA_ENABLE_CUDASIM=1 make ptest T=tests/parallel/cuda``; on a GPU without the variable.
"""

import numba
import pytest
import torch

from tests.parallel.cuda.simulated import Simulated


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

    found: list = []
    of = (lambda tensors: Simulated()) if numba.config.ENABLE_CUDASIM else device.of

    def begin(tensors):
        found.append(of(tensors))
        return found[-1]

    monkeypatch.setattr(device, "of", begin)
    return found


@pytest.fixture
def simulated(places):
    """The same, for tests that look into the simulation."""
    if not numba.config.ENABLE_CUDASIM:
        pytest.skip("looks into the simulated GPU; set NUMBA_ENABLE_CUDASIM=1")
    return places
