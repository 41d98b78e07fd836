"""``cvt``: between any two types, with rounding, saturation and PTX's results for NaN."""

from __future__ import annotations

import numpy as np

from tests.ptx.alu import Compute, Operation, builds
from tests.ptx.floats import MODES, as_float64, from_float64
from tests.ptx.kinds import Kind
from tests.ptx.text import Instruction

TO_INTEGER: dict[str, Compute] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


@builds("cvt")
def convert(i: Instruction) -> Operation | None:
    to, source = i.kinds
    modes = [m for m in i.modifiers if m in MODES or m in TO_INTEGER]
    saturate = "sat" in i.modifiers
    if len(modes) + saturate != len(i.modifiers) or len(modes) > 1:
        return None  # .ftz, .relu, …
    mode = modes[0] if modes else "rn"
    if source.is_float and to.is_float:
        return None if saturate else _float_to_float(to, source, mode)
    if source.is_float:
        return _float_to_integer(to, source, mode)
    if to.is_float:
        return None if saturate else _integer_to_float(to, source, mode)
    return _integer_to_integer(to, source, saturate)


def _float_to_float(to: Kind, source: Kind, mode: str) -> Operation:
    def compute(a: np.ndarray) -> np.ndarray:
        wide = as_float64(a, source)
        if mode in TO_INTEGER:
            return from_float64(TO_INTEGER[mode](wide), to, "rn")
        return from_float64(wide, to, mode)

    return Operation(to, (source,), compute)


def _float_to_integer(to: Kind, source: Kind, mode: str) -> Operation | None:
    """Saturating; NaN gives 0, or the top bit where either side has 64 bits."""
    if mode not in TO_INTEGER:
        return None
    limits = np.iinfo(to.dtype)
    for_nan = 1 << (to.bits - 1) if 64 in (to.bits, source.bits) else 0
    nan = np.array(for_nan, to.storage).view(to.dtype)

    def compute(a: np.ndarray) -> np.ndarray:
        whole = TO_INTEGER[mode](as_float64(a, source))
        fits = (whole >= float(limits.min)) & (whole < float(limits.max + 1))
        beyond = np.where(whole > 0, to.dtype.type(limits.max), to.dtype.type(limits.min))
        inside = np.where(fits, whole, 0.0).astype(to.dtype)
        return np.where(np.isnan(whole), nan, np.where(fits, inside, beyond))

    return Operation(to, (source,), compute)


def _integer_to_float(to: Kind, source: Kind, mode: str) -> Operation | None:
    if source.bits == 64:  # NumPy rounds to nearest from 64 bits; nothing wider is at hand
        if mode != "rn" or to.bits < 32:
            return None
        return Operation(to, (source,), lambda a: a.astype(to.dtype))
    return Operation(to, (source,), lambda a: from_float64(a.astype(np.float64), to, mode))


def _integer_to_integer(to: Kind, source: Kind, saturate: bool) -> Operation:
    if not saturate:
        return Operation(to, (source,), lambda a: a.astype(to.dtype))
    low, high = np.iinfo(to.dtype).min, np.iinfo(to.dtype).max
    inside = np.iinfo(source.dtype)
    low, high = max(low, inside.min), min(high, inside.max)
    return Operation(to, (source,), lambda a: np.clip(a, low, high).astype(to.dtype))
