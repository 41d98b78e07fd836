"""What the tests of both adapters' device paths share: where exchanges and stages ran."""

import numba
import pytest

if numba.config.ENABLE_CUDASIM:
    from tests.simulator.turns import take_turns

    take_turns()


def watched(monkeypatch, device, simulated):
    """All places that ``device.of`` finds; without a GPU, those that ``simulated`` makes."""
    found: list = []
    of = (lambda _tensors: simulated()) if numba.config.ENABLE_CUDASIM else device.of

    def begin(tensors):
        found.append(of(tensors))
        return found[-1]

    monkeypatch.setattr(device, "of", begin)
    return found


@pytest.fixture
def simulated(places):
    """The places, for tests that look into the simulation."""
    if not numba.config.ENABLE_CUDASIM:
        pytest.skip("looks into the simulated GPU; set NUMBA_ENABLE_CUDASIM=1")
    return places
