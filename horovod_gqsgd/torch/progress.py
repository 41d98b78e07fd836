"""The thread that carries exchanges on, so that none waits for the next gradient.

Backward passes leave Python for long: a global norm that arrives meanwhile is answered at once,
and words are on the wire before the next hook. Kernels release the GIL.
"""

import atexit
import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch

from horovod_gqsgd.torch.operation import Operation
from horovod_gqsgd.torch.threads import use_threads
from horovod_gqsgd.transports import horovod_torch as native

#: Exchanges looked at that cannot go on before a look ends: Horovod completes them in the order of
#: their start, as a rule. Every so many looks all of them have their turn.
WINDOW, EVERY = 8, 16
#: Seconds between two looks, at first and at most, and how they grow: looking takes time from the
#: threads that are waited for. So an exchange goes on late by half of what it waited for, at most.
PAUSE, LONGEST_PAUSE, GROWTH = 5e-5, 2e-3, 1.5
#: Microseconds between two looks of compiled code, at first and at most, while somebody waits and
#: while nobody does: cores then have gradients to compute, and Horovod looks once in a millisecond.
URGED, IDLE = (50, 200), (1000, 1000)
USLEEP = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value


class Progress:
    """Exchanges under way, and the thread, which starts with the first of them."""

    def __init__(self) -> None:
        self._pending: dict[Operation, None] = {}  # in the order of their start
        self._changed = threading.Condition()
        self._going_on = threading.Lock()  # held while an exchange goes on
        self._thread: threading.Thread | None = None
        self._threads = 1
        self._waiting = 0  # callers
        self._changes = np.zeros(1, np.int64)  # of what is under way, for compiled code to see
        self._poll = 0  # the address of Horovod's
        atexit.register(self._interrupt, last=True)

    def add(self, operation: Operation) -> None:
        """Carry on an exchange that has begun, with as many threads as the caller's torch uses."""
        with self._changed:
            self._threads = torch.get_num_threads()
            self._pending[operation] = None
            self._interrupt()
            if self._thread is None or not self._thread.is_alive():  # none survives a fork
                self._thread = threading.Thread(target=self._run, name="gqsgd", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, operation: Operation) -> None:
        """Block until an exchange is done, or has failed."""
        if not operation.done:
            with self._urged(), self._changed:
                self._changed.wait_for(lambda: operation.done)

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Let exchanges go on until ``ready()``, or until none is under way any more."""
        pause = PAUSE
        with self._urged():
            while self._pending and not ready():
                time.sleep(pause)
                pause = min(GROWTH * pause, LONGEST_PAUSE)

    def drain(self) -> None:
        """Block until no exchange is under way."""
        with self._urged(), self._changed:
            self._changed.wait_for(lambda: not self._pending)

    @contextmanager
    def _urged(self) -> Iterator[None]:
        """Look after exchanges more often, as the caller waits."""
        with self._changed:
            self._waiting += 1
            self._interrupt()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    def clear(self) -> None:
        """Forget all exchanges; none goes on after this."""
        self._interrupt()
        with self._going_on, self._changed:
            self._pending.clear()
            self._changed.notify_all()

    def _interrupt(self, last: bool = False) -> None:
        """End a wait of compiled code; the ``last`` time there is no other: its library may go."""
        if last:
            self._poll = 0
        self._changes += 1

    def _run(self) -> None:
        self._poll = native.poll_address()
        with torch.no_grad():
            while True:
                try:
                    self._carry_on()
                except Exception as error:  # those who wait would wait for ever
                    self._fail(error)

    def _carry_on(self) -> None:
        pause, look = PAUSE, 0
        while True:
            with self._changed:
                if not self._pending:
                    self._changed.wait_for(lambda: self._pending)
                    pause = PAUSE
                pending, changes = list(self._pending), int(self._changes[0])
                use_threads(self._threads)
            look += 1
            moved = self._look(pending, WINDOW if look % EVERY else len(pending))
            pause = PAUSE if moved else min(GROWTH * pause, LONGEST_PAUSE)
            self._rest(pause, changes)

    def _rest(self, pause: float, changes: int) -> None:
        """Sleep; or wait until Horovod is done with something, where that takes no Python."""
        with self._going_on:  # lest Horovod be reset, and forget handles that are asked for
            with self._changed:
                handles = [operation.handle for operation in islice(self._pending, WINDOW)]
            if self._poll and handles and None not in handles:
                from horovod_gqsgd.kernels.waiting import wait_for_any

                limits = (*(URGED if self._waiting else IDLE), int(1e6 * LONGEST_PAUSE))
                asked = np.array(handles, np.int32)
                wait_for_any(self._poll, USLEEP, asked, self._changes, changes, *limits)
                return
        time.sleep(pause)

    def _fail(self, error: Exception) -> None:
        """End all exchanges with an error."""
        with self._going_on, self._changed:
            for operation in self._pending:
                if not operation.done:
                    operation.fail(error)
            self._pending.clear()
            self._changed.notify_all()

    def _look(self, pending: list[Operation], window: int) -> bool:
        """Let exchanges go on, until ``window`` of them cannot; returns whether any could."""
        stuck, moved = 0, False
        for operation in pending:
            with self._going_on:
                if operation not in self._pending:
                    continue
                moved |= operation.advance()
            if operation.done:
                with self._changed:
                    self._pending.pop(operation, None)
                    self._changed.notify_all()
            else:
                stuck += 1
                if stuck == window:
                    break
        return moved
