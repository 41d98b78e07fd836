"""Run a kernel compiled by Numba on NumPy arrays, as ``kernel[grid, threads](*args)`` would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ptx.machine import Machine, Schedule
from tests.ptx.memory import LINE, Buffer, Global
from tests.ptx.text import Module, parse


@dataclass(frozen=True)
class Window:
    """``array`` as the elements from ``first`` on of a tensor of ``size``, the only ones there."""

    array: np.ndarray
    first: int
    size: int

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What a launcher asks a device array: its address, which is aligned."""
        return {"data": (0, False)}


class Arguments:
    """Arguments laid out as Numba lays them out, and the memory they point into."""

    def __init__(self, args: tuple) -> None:
        self.memory = Global()
        self.copies: list[tuple[np.ndarray, Buffer]] = []
        self.values = [value for arg in args for value in self._flat(arg)]

    def _flat(self, arg: object) -> list[np.ndarray]:
        if isinstance(arg, tuple):
            return [value for item in arg for value in self._flat(item)]
        if isinstance(arg, np.ndarray):
            arg = Window(arg, 0, arg.size)
            return self._array(arg, arg.array.shape)
        if isinstance(arg, Window):
            return self._array(arg, (arg.size,))
        if isinstance(arg, np.generic):
            return [np.array([arg])]
        raise TypeError(f"an argument without a NumPy type: {arg!r}")

    def _array(self, window: Window, shape: tuple[int, ...]) -> list[np.ndarray]:
        array = window.array
        if not array.flags.c_contiguous:
            raise ValueError("arrays must be contiguous")
        content = array.reshape(-1).view(np.uint8)
        # as far off an aligned address as the array itself; a far window counts as aligned
        skew = 0 if window.first else array.ctypes.data % LINE
        buffer = self.memory.allocate(content, skew + window.first * array.itemsize)
        self.copies.append((array, buffer))
        strides = [int(np.prod(shape[axis + 1 :])) * array.itemsize for axis in range(len(shape))]
        pointer = buffer.address + skew
        # no memory manager, no parent, then what describes the array
        numbers = [0, 0, window.size, array.itemsize, pointer, *shape, *strides]
        return [np.array([number], np.uint64) for number in numbers]

    def copy_back(self) -> None:
        """Bring what the kernel wrote into the caller's arrays."""
        for array, buffer in self.copies:
            after = buffer.content.view(array.dtype) if array.size else array
            if array.flags.writeable:
                array.reshape(-1)[:] = after.reshape(-1)


def launch(
    ptx: str | Module,
    grid: int,
    threads: int,
    args: tuple,
    *,
    blocks: np.ndarray | None = None,
    schedule: Schedule | None = None,
) -> Machine:
    """Execute the only kernel of ``ptx``; arrays among ``args`` receive what it writes.

    Parameters
    ----------
    blocks:
        Numbers of the blocks to run (all): with `Window`, a part of a grid too large to run.
    schedule:
        The order of threads (all step together).
    """
    module = parse(ptx) if isinstance(ptx, str) else ptx
    function = module.entry
    arguments = Arguments(args)
    kinds = list(function.params.values())
    widths = [value.itemsize for value in arguments.values]
    if widths != [kind.bytes for kind in kinds]:
        raise TypeError(f"the kernel takes parameters {kinds}, given {widths} bytes")
    params = dict(zip(function.params, arguments.values, strict=True))
    numbers = np.arange(grid) if blocks is None else blocks
    machine = Machine(module, function, arguments.memory, params, grid, threads, numbers)
    machine.run(schedule or Schedule())
    machine.steps.clear()  # they hold the machine: else its memory would wait for the collector
    arguments.copy_back()
    return machine
