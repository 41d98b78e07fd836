"""The TensorFlow adapter's device path: on a GPU, or with the kernels in Numba's CUDA simulator.

By hand: ``NUMBA_ENABLE_CUDASIM=1 make ptest T=tests/parallel/cuda_tensorflow``; on a GPU without
the variable.
"""

import numba
import pytest

from tests.parallel.cuda_tensorflow.simulated import Simulated
from tests.parallel.tensorflow.conftest import first_step, hvd, traced

__all__ = ["first_step", "hvd", "traced"]


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Where stages ran; without a GPU, tensors of the host pass for those of one."""
    from horovod_gqsgd.tensorflow import device

    found: list = []
    of = device.of
    if numba.config.ENABLE_CUDASIM:
        monkeypatch.setattr(device, "available", lambda: True)
        of = lambda tensors: Simulated()  # noqa: E731

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
