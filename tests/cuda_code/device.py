"""A device for `tests.unit.cuda_checks` on which the compiled PTX is interpreted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba import typeof

from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels.launch import Launcher
from tests.cuda_code.programs import catalogue, program
from tests.ptx import Schedule, Window, launch, parse
from tests.ptx.machine import Machine
from tests.ptx.text import Module


@functools.cache
def _names() -> dict[tuple, str]:
    """Names of the kernels by function and argument types."""
    return {(kernel.function, kernel.signature): name for name, kernel in catalogue().items()}


def name_of(kernel: Callable, arguments: tuple) -> str:
    """The entry of the catalogue that a launch uses."""
    values = (a.array if isinstance(a, Window) else a for a in arguments)
    signature = tuple(typeof(value) for value in values)
    name = _names().get((kernel, signature))
    if name is None:
        raise KeyError(f"not in the catalogue: {kernel.__module__} with {signature}")
    return name


@functools.cache
def module(name: str, architecture: str) -> Module:
    """A parsed kernel."""
    return parse(program(name).ptx[architecture])


@dataclass
class Interpreter:
    """Runs what was compiled for ``architecture``, in the order of threads that is given.

    ``seen`` collects the kernels launched, the last run of each.
    """

    architecture: str
    schedule: Schedule = field(default_factory=Schedule)
    seen: dict[str, Machine] = field(default_factory=dict)

    def launcher(self, config: Config, rank: int, n: int) -> Launcher:
        return Launcher(config, rank, n, self.run, self.empty)

    def run(self, kernel: Callable, blocks: int, threads: int, *arguments: Any) -> None:
        name = name_of(kernel, arguments)
        code = module(name, self.architecture)
        self.seen[name] = launch(code, blocks, threads, arguments, schedule=self.schedule)

    @staticmethod
    def empty(count: int, dtype: Any) -> np.ndarray:
        return np.full(count * np.dtype(dtype).itemsize, 0x55, np.uint8).view(dtype)

    def array(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def numpy(self, array: np.ndarray) -> np.ndarray:
        return array


@dataclass
class FarEnd(Interpreter):
    """Runs the blocks of threads for the elements from ``first`` on of a tensor of ``size``.

    A block of threads takes ``each`` elements, and the grid has as many as the tensor needs.
    """

    first: int = 0
    size: int = 0
    each: int = 1

    def run(self, kernel: Callable, blocks: int, threads: int, *arguments: Any) -> None:
        if not any(isinstance(argument, Window) for argument in arguments):
            super().run(kernel, blocks, threads, *arguments)
            return
        grid = -(-self.size // self.each)
        far = np.arange(self.first // self.each, grid)
        code = module(name_of(kernel, arguments), self.architecture)
        launch(code, grid, threads, arguments, blocks=far)
