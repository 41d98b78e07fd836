"""The TensorFlow adapter's device path: on a GPU, or with the kernels in Numba's CUDA simulator.

By hand: ``NUMBA_ENABLE_CUDASIM=1 make ptest T=tests/parallel/cuda_tensorflow``; on a GPU without
the variable.
"""

import numba
import pytest

from tests.parallel.cuda_tensorflow.simulated import Simulated
from tests.parallel.places import simulated, watched
from tests.parallel.tensorflow.conftest import first_step, hvd, traced

__all__ = ["first_step", "hvd", "simulated", "traced"]


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Where stages ran; without a GPU, tensors of the host pass for those of one."""
    from horovod_gqsgd.tensorflow import device

    if numba.config.ENABLE_CUDASIM:
        monkeypatch.setattr(device, "available", lambda: True)
    return watched(monkeypatch, device, Simulated)
