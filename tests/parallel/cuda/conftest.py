"""The adapter's device path in jobs without a GPU: kernels in Numba's CUDA simulator.

Run by hand: ``NUMBA_ENABLE_CUDASIM=1 make ptest T=tests/parallel/cuda``.
"""

import pytest

from tests.parallel.cuda.simulated import Simulated


@pytest.fixture(scope="session")
def hvd():
    import horovod.torch as hvd

    hvd.init()
    yield hvd
    hvd.shutdown()


@pytest.fixture
def gpu(monkeypatch):
    """Tensors of the host pass for those of a GPU; the list of places that exchanges began on."""
    from horovod_gqsgd.torch import device

    places: list[Simulated] = []

    def of(tensors):
        places.append(Simulated())
        return places[-1]

    monkeypatch.setattr(device, "of", of)
    return places
