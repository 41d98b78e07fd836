"""Numba's CUDA simulator with threads of a block that take turns: four times as fast.

Numba starts them all and looks after them in a loop, and all compete for the GIL. Here each runs
up to a barrier or its end, and only kernels with barriers need threads of the system at all.
"""

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel, kernelapi
from numba.cuda.simulator.kernelapi import Dim3


class Turn:
    """A thread of a block, as kernels see it by way of `numba.cuda`."""

    def __init__(self, manager: Any, grid_point: tuple, block_point: tuple) -> None:
        self.blockIdx, self.threadIdx = Dim3(*grid_point), Dim3(*block_point)
        size = Dim3(*manager._block_dim)
        x, y, z = block_point
        self.thread_id = x + size.x * (y + size.y * z)
        self.here, self.elsewhere = threading.Lock(), threading.Lock()
        self.here.acquire()
        self.elsewhere.acquire()
        self.ended = self.abandoned = False
        self.error: BaseException | None = None

    def begin(self, function: Any, arguments: tuple) -> None:
        """Run to the first barrier, or to the end, in a thread of the system."""

        def run() -> None:
            self.here.acquire()
            try:
                function(*arguments)
            except BaseException as error:
                self.error = error
            self.ended = True
            self.elsewhere.release()

        threading.Thread(target=run, daemon=True).start()
        self.resume()

    def resume(self) -> None:
        """Run to the next barrier, or to the end."""
        current.turn = self
        self.here.release()
        self.elsewhere.acquire()
        if self.error and not self.abandoned:
            raise self.error

    def syncthreads(self) -> None:
        self.elsewhere.release()
        self.here.acquire()
        if self.abandoned:
            raise SystemExit


class Alone(Turn):
    """A thread that runs where the block is run from: of its block none came to a barrier."""

    def syncthreads(self) -> None:
        raise RuntimeError(f"thread {self.thread_id} is at a barrier and others have ended")


current = SimpleNamespace(turn=None)


def run(manager: Any, grid_point: tuple, *arguments: Any) -> None:
    """`BlockManager.run`."""
    first, *others = np.ndindex(*manager._block_dim)
    turns = [Turn(manager, grid_point, first)]
    try:
        turns[0].begin(manager._f, arguments)
        if turns[0].ended:
            for point in others:
                current.turn = Alone(manager, grid_point, point)
                manager._f(*arguments)
            return
        for point in others:
            turns.append(Turn(manager, grid_point, point))
            turns[-1].begin(manager._f, arguments)
        while live := [turn for turn in turns if not turn.ended]:
            for turn in live:
                turn.resume()
            turns.reverse()  # a barrier that is missing shows where the last are first
    finally:
        for turn in turns:
            if not turn.ended:
                turn.abandoned = True
                turn.resume()


def take_turns() -> None:
    """Put this in the place of Numba's."""
    kernel.BlockManager.run = run
    kernelapi.threading = SimpleNamespace(current_thread=lambda: current.turn)
