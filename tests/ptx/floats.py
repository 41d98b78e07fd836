"""Floating-point instructions, correctly rounded in every mode; approximations are refused.

Results are formed exactly enough in the next wider type, "rounded to odd" (the last bit tells
that something was cut off), which makes the second, visible rounding the only one.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.ptx.alu import Compute, Operation, builds, same
from tests.ptx.kinds import Kind
from tests.ptx.text import Instruction

MODES = ("rn", "rz", "rm", "rp")


def add_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The float64 sum, rounded to odd."""
    total = a + b
    # The error of a sum, exact whatever the sizes (Knuth's TwoSum).
    shadow = total - a
    error = (a - (total - shadow)) + (b - shadow)
    inexact = np.isfinite(total) & (error != 0) & np.isfinite(error)
    even = (total.view(np.int64) & 1) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact & even, np.nextafter(total, towards), total)


def narrow(wide: np.ndarray, dtype: np.dtype, mode: str) -> np.ndarray:
    """Float64 to a narrower type in a rounding mode."""
    nearest = wide.astype(dtype)
    if mode == "rn":
        return nearest
    down = {"rm": np.ones_like(wide, bool), "rp": np.zeros_like(wide, bool), "rz": wide > 0}[mode]
    back = nearest.astype(np.float64)
    far = np.where(down, back > wide, back < wide)
    limit = np.where(down, -np.inf, np.inf).astype(dtype)
    return np.where(far, np.nextafter(nearest, limit), nearest)


def one_nan(result: np.ndarray) -> np.ndarray:
    """GPUs answer with one NaN, all bits set but the sign; float64 keeps what NumPy made."""
    if result.dtype == np.float64:
        return result
    ones = np.array((1 << 8 * result.itemsize - 1) - 1, f"u{result.itemsize}")
    return np.where(np.isnan(result), ones.view(result.dtype), result)


def as_float64(bits: np.ndarray, of: Kind) -> np.ndarray:
    """A source operand of any floating-point type, exactly."""
    if of.letter == "bf":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


def from_float64(wide: np.ndarray, of: Kind, mode: str) -> np.ndarray:
    """Back to the type, rounding once."""
    if of.letter != "bf":
        return one_nan(narrow(wide, of.dtype, mode))
    if mode != "rn":
        raise NotImplementedError("bfloat16 rounds to nearest only")
    # To odd in float32 first; then the upper half, to nearest even.
    cut = narrow(wide, np.dtype(np.float32), "rz")
    bits = cut.view(np.uint32) | (cut.astype(np.float64) != wide).astype(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(wide), np.uint32(0x7FFF), rounded >> np.uint32(16)).astype(np.uint16)


def _fused(a: float, b: float, c: float) -> float:
    if not np.isfinite((a, b, c)).all():
        return a * b + c
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Float64 ``a·b + c`` with one rounding: by fractions where the product is not exact."""
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    # Products of numbers with 24 significant bits are exact.
    short = (a.astype(np.float32) == a) & (b.astype(np.float32) == b)
    result = product + c
    if not short.all():
        result[~short] = np.vectorize(_fused, [float])(a[~short], b[~short], c[~short])
    return result


def _mode(i: Instruction) -> str | None:
    """The rounding mode, or None where a modifier is unknown (.ftz, .approx, .sat, …)."""
    modes = i.modifiers or ("rn",)
    return modes[0] if len(modes) == 1 and modes[0] in MODES else None


@builds("add", "sub", "mul", "fma", "mad")
def arithmetic(i: Instruction) -> Operation | None:
    of, mode = i.kinds[0], _mode(i)
    if not of.is_float or mode is None:
        return None
    if of.bits == 64:
        exact: dict[str, Compute] = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "fma": fma64,
        }
        return same(of, 3 if i.name == "fma" else 2, exact[i.name]) if mode == "rn" else None

    def wide(compute: Compute) -> Compute:
        return lambda *sources: from_float64(
            compute(*(as_float64(s, of) for s in sources)), of, mode
        )

    if i.name in ("fma", "mad"):  # products of at most 24 bits are exact in float64
        return same(of, 3, wide(lambda a, b, c: add_to_odd(a * b, np.broadcast_to(c, a.shape))))
    forms: dict[str, Compute] = {
        "add": add_to_odd,
        "sub": lambda a, b: add_to_odd(a, -b),
        "mul": np.multiply,
    }
    return same(of, 2, wide(forms[i.name]))


@builds("div", "sqrt", "rcp")
def division(i: Instruction) -> Operation | None:
    """IEEE division and root, which NumPy rounds correctly to nearest."""
    (of,) = i.kinds
    if of.letter != "f" or _mode(i) != "rn" or not i.modifiers:
        return None
    if i.name == "div":
        return same(of, 2, lambda a, b: one_nan(a / b))
    if i.name == "sqrt":
        return same(of, 1, lambda a: one_nan(np.sqrt(a)))
    return same(of, 1, lambda a: one_nan(of.dtype.type(1) / a))


@builds("min", "max")
def extremes(i: Instruction) -> Operation | None:
    """The number, if one of two is NaN; ``.NaN``: NaN."""
    (of,) = i.kinds
    if of.letter != "f" or i.modifiers not in ((), ("NaN",)):
        return None
    pairs: dict[str, tuple[Compute, Compute]] = {
        "min": (np.fmin, np.minimum),
        "max": (np.fmax, np.maximum),
    }
    return same(of, 2, _zeros_ordered(pairs[i.name][bool(i.modifiers)], i.name))


def _zeros_ordered(compute: Compute, name: str) -> Compute:
    """Add that PTX puts −0 below +0, NumPy takes them for equal."""

    def ordered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = compute(a, b)
        zeros = (a == 0) & (b == 0)
        negative = np.signbit(a) | np.signbit(b) if name == "min" else np.signbit(a) & np.signbit(b)
        zero = np.where(negative, -0.0, 0.0).astype(result.dtype)
        return one_nan(np.where(zeros, zero, result))

    return ordered


@builds("neg", "abs")
def sign(i: Instruction) -> Operation | None:
    (of,) = i.kinds
    if not of.is_float or i.modifiers:
        return None
    top = of.storage.type(1 << (of.bits - 1))
    raw = Kind("b", of.bits)
    return same(raw, 1, (lambda a: a ^ top) if i.name == "neg" else (lambda a: a & ~top))
