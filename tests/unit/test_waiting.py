"""Waiting for a library's handles in compiled code."""

import ctypes
import ctypes.util
import threading
import time

import numpy as np

from horovod_gqsgd.kernels.waiting import wait_for_any
from horovod_gqsgd.torch import progress
from horovod_gqsgd.torch.operation import Operation
from horovod_gqsgd.transports import horovod_torch as native
from horovod_gqsgd.transports.horovod_torch import Call, HorovodTorch

Poll = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int)
LONG = 60_000_000  # microseconds


def on(name):
    """The collectives of an allreduce of that name."""
    return HorovodTorch(Call(name, 0, 1, 1.0, 1.0, 0))


def wait(poll, handles, changes, seen=0, limit=LONG) -> None:
    address = ctypes.cast(poll, ctypes.c_void_p).value
    asked = np.array(handles, np.int32)
    wait_for_any(address, progress.USLEEP, asked, changes, seen, *progress.URGED, limit)


def test_until_one_of_them_is_done():
    asked = []

    @Poll
    def poll(handle):
        asked.append(handle)
        return handle == 7 and len(asked) > 10

    wait(poll, [3, 7, 5], np.zeros(1, np.int64))
    assert asked[:4] == [3, 7, 5, 3]
    assert asked[-1] == 7


def test_until_something_changes():
    changes, started = np.zeros(1, np.int64), threading.Event()

    @Poll
    def poll(handle):
        started.set()
        return False

    thread = threading.Thread(target=wait, args=[poll, [1], changes], daemon=True)
    thread.start()
    assert started.wait(30)
    changes += 1
    thread.join(30)
    assert not thread.is_alive()


def test_not_even_one_look_if_something_has_changed():
    @Poll
    def poll(handle):
        raise AssertionError("a handle that may be forgotten was asked for")

    wait(poll, [1], np.ones(1, np.int64))


def test_until_time_is_up():
    start = time.monotonic()
    wait(Poll(lambda handle: False), [1], np.zeros(1, np.int64), limit=5000)
    assert time.monotonic() - start >= 0.005


def test_this_build_of_horovod_can_be_asked():
    assert native.poll_address() != 0


def test_a_build_of_horovod_that_hides_its_function_is_polled_from_python(monkeypatch):
    monkeypatch.setattr(native.library, "__file__", ctypes.util.find_library("c"))
    assert native.poll_address() == 0


def test_looks_are_rare_until_somebody_waits():
    asked = []

    @Poll
    def poll(handle):
        asked.append(handle)
        return False

    carrier = progress.Progress()
    carrier._pending[Operation(on("gradient"), (handle for handle in [7]))] = None
    carrier._poll = ctypes.cast(poll, ctypes.c_void_p).value or 0

    def looks() -> int:
        asked.clear()
        carrier._rest(progress.PAUSE, int(carrier._changes[0]))
        return asked.count(7)

    idle, before = looks(), int(carrier._changes[0])
    with carrier._urged():
        assert carrier._changes[0] != before  # which ends the pause under way
        assert looks() > 3 * idle
    assert looks() == idle == 2
