"""Integer, bit and logic instructions. NumPy's arrays wrap around as PTX's registers do."""

from __future__ import annotations

import numpy as np

from tests.ptx.alu import Compute, Operation, builds, same
from tests.ptx.kinds import PRED, U32, Kind, kind
from tests.ptx.text import Instruction


def wider(of: Kind) -> Kind:
    """The type of twice the width."""
    return Kind(of.letter, 2 * of.bits)


def multiply_high(a: np.ndarray, b: np.ndarray, of: Kind) -> np.ndarray:
    """Upper half of the product."""
    if of.bits < 64:
        wide = wider(of).dtype
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(of.bits)).astype(of.dtype)
    ua, ub = a.astype(np.uint64), b.astype(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a1, a0, b1, b0 = ua >> half, ua & low, ub >> half, ub & low
    middle = a1 * b0 + ((a0 * b0) >> half)
    cross = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> half) + (cross >> half)
    if of.letter == "s":
        high = high - np.where(a < 0, ub, np.uint64(0)) - np.where(b < 0, ua, np.uint64(0))
    return high.view(of.dtype)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as PTX does and NumPy does not; by zero: all ones."""
    b = np.broadcast_to(b, np.broadcast(a, b).shape)
    quotient = np.floor_divide(a, np.where(b == 0, b.dtype.type(1), b))
    inexact = quotient * b != a
    quotient = quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.where(b == 0, ~a.dtype.type(0), quotient)


def product(half: str, of: Kind) -> tuple[Kind, Compute]:
    """What ``.lo``, ``.hi`` and ``.wide`` make of two factors."""
    if half == "wide":
        wide = wider(of)
        return wide, lambda a, b: a.astype(wide.dtype) * b.astype(wide.dtype)
    if half == "hi":
        return of, lambda a, b: multiply_high(a, b, of)
    return of, lambda a, b: a * b


SIMPLE: dict[str, Compute] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@builds("add", "sub", "min", "max")
def simple(i: Instruction) -> Operation | None:
    (of,) = i.kinds
    return None if of.is_float or i.modifiers else same(of, 2, SIMPLE[i.name])


@builds("mul", "mad")
def multiply(i: Instruction) -> Operation | None:
    (of,) = i.kinds
    if of.is_float or i.modifiers not in (("lo",), ("hi",), ("wide",)):
        return None
    result, times = product(i.modifiers[0], of)
    if i.name == "mul":
        return Operation(result, (of, of), times)
    return Operation(result, (of, of, result), lambda a, b, c: times(a, b) + c)


@builds("div", "rem")
def quotient(i: Instruction) -> Operation | None:
    (of,) = i.kinds
    if of.is_float:
        return None
    if i.name == "div":
        return same(of, 2, divide)
    return same(of, 2, lambda a, b: np.where(b == 0, a, a - divide(a, b) * b))


@builds("neg", "abs", "not")
def unary(i: Instruction) -> Operation | None:
    (of,) = i.kinds
    if of.is_float:
        return None
    if of == PRED:
        return same(of, 1, np.logical_not)
    return same(of, 1, SIMPLE[i.name])


@builds("and", "or", "xor")
def logic(i: Instruction) -> Operation:
    return same(i.kinds[0], 2, SIMPLE[i.name])


@builds("lop3")
def lookup(i: Instruction) -> Operation:
    """Any function of three bits: the last operand is its table of truth."""

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
        result = np.zeros_like(a | b | c)
        for row in range(8):
            if int(table[0]) >> row & 1:
                terms = [v if row & bit else ~v for v, bit in ((a, 4), (b, 2), (c, 1))]
                result |= terms[0] & terms[1] & terms[2]
        return result

    return same(i.kinds[0], 4, compute)


def shift_left(a: np.ndarray, by: np.ndarray) -> np.ndarray:
    """0 for counts from the width up."""
    bits = a.dtype.itemsize * 8
    shifted = a << np.minimum(by, bits - 1).astype(a.dtype)
    return np.where(by >= bits, a.dtype.type(0), shifted)


def shift_right(a: np.ndarray, by: np.ndarray) -> np.ndarray:
    """0, or the sign of signed ones, for counts from the width up."""
    bits = a.dtype.itemsize * 8
    shifted = a >> np.minimum(by, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(by >= bits, a.dtype.type(0), shifted)


@builds("shl", "shr")
def shift(i: Instruction) -> Operation:
    (of,) = i.kinds
    return Operation(of, (of, U32), shift_left if i.name == "shl" else shift_right)


@builds("shf")
def funnel(i: Instruction) -> Operation:
    """Shift of a pair of registers."""
    direction, mode = i.modifiers

    def compute(low: np.ndarray, high: np.ndarray, by: np.ndarray) -> np.ndarray:
        by = by & np.uint32(31) if mode == "wrap" else np.minimum(by, np.uint32(32))
        pair = (high.astype(np.uint64) << np.uint64(32)) | low
        if direction == "l":
            return ((pair << by.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
        return (pair >> by.astype(np.uint64)).astype(np.uint32)

    return same(U32, 3, compute)


@builds("bfe")
def extract(i: Instruction) -> Operation:
    """``length`` bits from ``start``, extended by the sign for signed types."""
    (of,) = i.kinds

    def compute(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        start, length = start & np.uint32(255), length & np.uint32(255)
        end = np.minimum(start + length, of.bits).astype(np.uint32)
        # drop what lies above, then what lies below; an empty field is 0
        top = shift_left(a, np.uint32(of.bits) - end)
        field = shift_right(top, np.uint32(of.bits) - end + start)
        return np.where(length == 0, a.dtype.type(0), field)

    return Operation(of, (of, U32, U32), compute)


@builds("bfi")
def insert(i: Instruction) -> Operation:
    (of,) = i.kinds

    def compute(
        field: np.ndarray, into: np.ndarray, start: np.ndarray, length: np.ndarray
    ) -> np.ndarray:
        start, length = start & np.uint32(255), length & np.uint32(255)
        mask = shift_left(shift_left(~field.dtype.type(0), length) ^ ~field.dtype.type(0), start)
        return (into & ~mask) | (shift_left(field, start) & mask)

    return Operation(of, (of, of, U32, U32), compute)


@builds("prmt")
def permute(i: Instruction) -> Operation | None:
    """Four bytes chosen out of eight; bit 3 of a choice repeats the byte's sign."""

    def compute(a: np.ndarray, b: np.ndarray, choice: np.ndarray) -> np.ndarray:
        pair = (b.astype(np.uint64) << np.uint64(32)) | a
        result = np.zeros(np.broadcast(pair, choice).shape, np.uint32)
        for place in range(4):
            chosen = (choice >> np.uint32(4 * place)) & np.uint32(15)
            byte = (pair >> (np.uint64(8) * (chosen & np.uint32(7)))).astype(np.uint8)
            sign = (byte.view(np.int8) >> np.int8(7)).view(np.uint8)
            byte = np.where(chosen & np.uint32(8), sign, byte)
            result |= byte.astype(np.uint32) << np.uint32(8 * place)
        return result

    return None if i.modifiers else same(U32, 3, compute)


@builds("brev", "clz", "popc")
def bits(i: Instruction) -> Operation:
    (of,) = i.kinds

    def as_bits(a: np.ndarray) -> np.ndarray:
        """One row of bits for every element, the highest first."""
        return np.unpackbits(a.astype(f">u{of.bytes}")[:, None].view(np.uint8), axis=1)

    def reverse(a: np.ndarray) -> np.ndarray:
        return np.packbits(as_bits(a)[:, ::-1], axis=1).view(f">u{of.bytes}")[:, 0].astype(of.dtype)

    def leading_zeros(a: np.ndarray) -> np.ndarray:
        return np.where(a == 0, of.bits, as_bits(a).argmax(axis=1)).astype(np.uint32)

    if i.name == "brev":
        return same(of, 1, reverse)
    compute = leading_zeros if i.name == "clz" else lambda a: as_bits(a).sum(1, dtype=np.uint32)
    return Operation(U32, (of,), compute)


@builds("mov", "cvta")
def move(i: Instruction) -> Operation:
    """Addresses of all spaces are numbered so that converting them changes nothing."""
    (of,) = i.kinds
    return same(of, 1, lambda a: a)


@builds("selp")
def select(i: Instruction) -> Operation:
    (of,) = i.kinds
    return Operation(of, (of, of, PRED), lambda a, b, which: np.where(which, a, b))


COMPARE: dict[str, Compute] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
COMBINE: dict[str, Compute] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(name: str, of: Kind) -> Compute:
    """A comparison; floating-point ones with a ``u`` are true of unordered numbers, too."""
    if not of.is_float:
        return COMPARE[name]

    def unordered(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.isnan(a) | np.isnan(b)

    if name in ("nan", "num"):
        return unordered if name == "nan" else lambda a, b: ~unordered(a, b)
    if name.endswith("u"):
        return lambda a, b: unordered(a, b) | COMPARE[name[:-1]](a, b)
    if name == "ne":  # NumPy calls NaN unequal to everything, PTX's ordered test does not
        return lambda a, b: ~unordered(a, b) & (a != b)
    return COMPARE[name]


@builds("setp")
def compare(i: Instruction) -> Operation | None:
    (of,) = i.kinds
    name, *combine = i.modifiers
    if of.letter == "bf" or "ftz" in combine:
        return None
    test = comparison(name, of)
    if not combine:
        return Operation(PRED, (of, of), test)
    join = COMBINE[combine[0]]
    return Operation(PRED, (of, of, PRED), lambda a, b, p: join(test(a, b), p))


@builds("set")
def compare_to_mask(i: Instruction) -> Operation | None:
    result, of = i.kinds
    if result.is_float or len(i.modifiers) != 1:
        return None
    test = comparison(i.modifiers[0], of)
    return Operation(
        kind(f"s{result.bits}"), (of, of), lambda a, b: -test(a, b).astype(f"i{result.bytes}")
    )
