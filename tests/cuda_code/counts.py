"""What a kernel executes and moves for one more element, counted in the interpreter.

It runs for two sizes; the difference is what the further elements cost, with every turn of a
loop and every branch as it was taken.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.cuda_code.cases import check
from tests.cuda_code.device import Interpreter, name_of
from tests.cuda_code.machine_code import executed
from tests.cuda_code.programs import program
from tests.cuda_code.roofline import GPUS

SIZE = 65_536
ALIGNMENT = 64
#: Elements of the gradient for each entry of a header, and for each norm.
BLOCK = 1024


@dataclass
class Counting(Interpreter):
    """Keeps how large the arrays of each kernel were: it reads or writes them once."""

    moved: dict[str, int] = field(default_factory=dict)

    def array(self, values: np.ndarray) -> np.ndarray:
        """Aligned, as what a framework allocates on a GPU is."""
        memory = np.empty(values.nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        aligned = memory[start : start + values.nbytes].view(values.dtype)
        aligned[:] = values
        return aligned

    def run(self, kernel: Callable, blocks: int, threads: int, *arguments: Any) -> None:
        super().run(kernel, blocks, threads, *arguments)
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        self.moved[name_of(kernel, arguments)] = sum(array.nbytes for array in arrays)


@dataclass(frozen=True)
class PerElement:
    """Machine instructions by architecture and kind, and bytes read and written."""

    instructions: dict[str, Counter[str]]
    bytes: float


def _run(name: str, size: int) -> PerElement:
    device = Counting("80")
    check(name, device, size)
    issued, ptx = device.seen[name].issued, program(name).ptx
    counts = {g.architecture: executed(ptx[g.architecture], g.architecture, issued) for g in GPUS}
    return PerElement(counts, device.moved[name])


@functools.cache
def per_element(name: str) -> PerElement:
    """Of a kernel that `programs.make` has compiled; its PTX is one for both architectures."""
    few, many = _run(name, SIZE), _run(name, 2 * SIZE)
    elements = SIZE * (BLOCK if name == "prepare.header" else 1)
    counts = {
        architecture: Counter(
            {
                kind: (count - few.instructions[architecture][kind]) / elements
                for kind, count in after.items()
            }
        )
        for architecture, after in many.instructions.items()
    }
    return PerElement(counts, (many.bytes - few.bytes) / elements)
