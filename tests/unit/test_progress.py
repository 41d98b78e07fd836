"""Exchanges that fail where no collective does: whoever waits is told, and others go on."""

import threading
from types import SimpleNamespace

import pytest

from horovod_gqsgd.torch import progress
from horovod_gqsgd.torch.operation import Operation
from horovod_gqsgd.torch.progress import Progress
from horovod_gqsgd.transports.horovod_torch import Call, HorovodTorch


def on(name):
    """The collectives of an allreduce of that name."""
    return HorovodTorch(Call(name, 0, 1, 1.0, 1.0, 0))


class Ready:
    """An event of a GPU that has passed."""

    def query(self):
        return True


class Broken:
    """An event of a GPU that has failed: torch raises what kernels did wrong when it is asked."""

    def query(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


class Place:
    """A GPU on which no event can be recorded any more."""

    def active(self):
        return threading.Lock()

    def event(self):
        raise RuntimeError("CUDA error: unspecified launch failure")


def steps(*waits):
    yield from waits


def leave():
    yield Ready()
    raise SystemExit("a reduction of the user ends the process")


def outcome(carrier, operation):
    """What whoever waits is told; fails rather than waits for ever."""
    waiter = threading.Thread(target=carrier.wait, args=[operation], daemon=True)
    waiter.start()
    waiter.join(10)
    assert not waiter.is_alive(), "nobody was told"
    return operation.error


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (lambda: Operation(on("x"), steps(Broken())), "illegal memory access"),
        (lambda: Operation(on("x"), steps(Ready()), Place()), "unspecified launch failure"),
        (lambda: Operation(on("x"), leave()), "ends the process"),
    ],
    ids=["query", "event", "exit"],
)
def test_what_fails_is_told_and_the_next_exchange_goes_on(failing, said):
    carrier, operation = Progress(), failing()
    carrier.add(operation)
    assert said in str(outcome(carrier, operation))
    with pytest.raises(BaseException, match=said):
        operation.deliver()
    after = Operation(on("y"), steps(Ready(), Ready()))
    carrier.add(after)
    assert outcome(carrier, after) is None


def test_a_thread_that_fails_ends_what_it_carried(monkeypatch):
    """And carries on what comes after."""

    def fail(threads):
        raise ValueError("no threads")

    carrier, operation = Progress(), Operation(on("x"), steps(Ready()))
    with monkeypatch.context() as broken:
        broken.setattr(progress, "use_threads", fail)
        carrier.add(operation)
        assert "no threads" in str(outcome(carrier, operation))
    after = Operation(on("y"), steps(Ready()))
    carrier.add(after)
    assert outcome(carrier, after) is None


def test_waiting_for_others_looks_ever_less_often(monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(progress, "time", SimpleNamespace(sleep=pauses.append))
    carrier = Progress()
    carrier._pending[Operation(on("x"), steps(Ready()))] = None  # no thread carries it on
    carrier.wait_for(lambda: len(pauses) == 20)
    assert pauses[0] == progress.PAUSE
    assert pauses[-1] == progress.LONGEST_PAUSE
    assert pauses == sorted(pauses)
    carrier.clear()
    carrier.wait_for(lambda: False)  # nothing to be kept from going on
    assert len(pauses) == 20
