"""The table of instructions that compute registers from registers.

An operation is declared by a builder that is given the instruction once and returns types and a
function of NumPy arrays; what no builder claims is an `UnknownInstruction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.ptx.kinds import Kind
from tests.ptx.text import Instruction, UnknownInstruction

Compute = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Operation:
    """``result = compute(*sources)``, each understood as the type beside it."""

    result: Kind
    sources: tuple[Kind, ...]
    compute: Compute


Builder = Callable[[Instruction], Operation | None]
BUILDERS: dict[str, list[Builder]] = {}


def builds(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder for the instructions called so."""

    def register(builder: Builder) -> Builder:
        for name in names:
            BUILDERS.setdefault(name, []).append(builder)
        return builder

    return register


def operation(instruction: Instruction) -> Operation:
    """What an instruction computes."""
    for builder in BUILDERS.get(instruction.name, []):
        found = builder(instruction)
        if found is not None:
            return found
    raise UnknownInstruction(instruction.text)


def same(kind: Kind, count: int, compute: Compute) -> Operation:
    """An operation whose result and ``count`` sources have one type."""
    return Operation(kind, (kind,) * count, compute)
