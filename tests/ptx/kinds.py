"""Types of PTX (``.u32``, ``.f16``, …) and the NumPy types that hold and compute them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

NAME = re.compile(r"(u|s|b|f|bf)(8|16|32|64)$|pred$")


@dataclass(frozen=True)
class Kind:
    """One type: ``letter`` tells how the bits are understood."""

    letter: str
    bits: int

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.letter in ("f", "bf")

    @property
    def storage(self) -> np.dtype:
        """What a register of this width holds: raw bits."""
        return np.dtype(bool) if self.letter == "pred" else np.dtype(f"u{self.bytes}")

    @property
    def dtype(self) -> np.dtype:
        """The view of those bits to compute with; NumPy has no bfloat16, whose bits stay raw."""
        letters = {"s": "i", "f": "f"}
        if self.letter not in letters:
            return self.storage
        return np.dtype(f"{letters[self.letter]}{self.bytes}")


def is_kind(name: str) -> bool:
    """Whether a part of an opcode names a type."""
    return NAME.match(name) is not None


def kind(name: str) -> Kind:
    """The type called ``name``, without its dot."""
    if name == "pred":
        return Kind("pred", 1)
    match = NAME.match(name)
    if match is None:
        raise ValueError(f"not a PTX type: .{name}")
    return Kind(match[1], int(match[2]))


PRED, U32, S32, U64 = kind("pred"), kind("u32"), kind("s32"), kind("u64")
