"""Exponential levels 1, 1/b, 1/b², …, b^-(m−1), and 0, for b = 2, √2 or ⁴√2.

A code of ``bits`` bits: the top bit is the sign, the others the index; index 0 is zero, index 1
the level 1, index m = 2^(bits−1) − 1 the smallest level. Negative zero is never emitted.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: Values are rounded as |y|·2^24, which keeps every scale and every level a normal float32.
SHIFT = 24
ONE_BITS = np.uint32((127 + SHIFT) << 23)

#: Resolution of the interval between zero and the smallest level: float32 holds it exactly.
LOW_BITS = 24

#: The level 1 as an integer in reductions.
UNIT = 40


def scale_for(norm: np.ndarray) -> np.ndarray:
    """Float32 ``2^24/norm``, rounded such that ``norm·scale ≥ 2^24``: the norm is the level 1.

    >>> float(scale_for(np.float32([3]))[0] * np.float32(3))
    16777216.0
    """
    one = np.float32(2**SHIFT)
    usable = np.isfinite(norm) & (norm > 0)
    safe = np.where(usable, norm, one).astype(np.float32)
    scale = one / safe
    scale = np.where(safe * scale < one, np.nextafter(scale, np.float32(np.inf)), scale)
    return np.where(usable, scale, np.float32(0))


@dataclass(frozen=True)
class Levels:
    """The levels of a code width and a base, given as levels per octave (1, 2 or 4).

    >>> levels = Levels(bits=3, octave=1)
    >>> levels.decode(np.arange(8, dtype=np.uint8))
    array([ 0.  ,  1.  ,  0.5 ,  0.25, -0.  , -1.  , -0.5 , -0.25], dtype=float32)
    >>> levels.encode(np.array([1, -0.5, 0.75], np.float32), np.zeros(3, np.uint32))
    array([1, 6, 2], dtype=uint8)
    """

    bits: int
    octave: int

    @property
    def count(self) -> int:
        """M, the number of levels above zero."""
        return 2 ** (self.bits - 1) - 1

    @cached_property
    def values(self) -> np.ndarray:
        """Float32 value of every index, 0 … m."""
        powers = 2.0 ** (-np.arange(self.count) / self.octave)
        return np.concatenate([[0.0], powers]).astype(np.float32)

    @cached_property
    def integers(self) -> np.ndarray:
        """Int64 value of every index, ``rint(2^40·b^-k)``: sums of these are exact."""
        powers = np.rint(2.0 ** (UNIT - np.arange(self.count) / self.octave))
        return np.concatenate([[0.0], powers]).astype(np.int64)

    @cached_property
    def thresholds(self) -> np.ndarray:
        """Mantissas (23 bits) at which the levels inside an octave lie, 0 and 2^23 included."""
        return np.rint((2.0 ** (np.arange(self.octave + 1) / self.octave) - 1) * 2**23).astype(
            np.uint32
        )

    def _signed(self, table: np.ndarray, codes: np.ndarray) -> np.ndarray:
        magnitude = table[codes & np.uint8(self.count)]
        return np.where(codes > self.count, -magnitude, magnitude)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes to float32 in [−1, 1]."""
        return self._signed(self.values, codes)

    def decode_integers(self, codes: np.ndarray) -> np.ndarray:
        """Codes to int64 in [−2^40, 2^40]."""
        return self._signed(self.integers, codes)

    def encode(self, values: np.ndarray, dither: np.ndarray) -> np.ndarray:
        """Round float32 ``values`` in [−1, 1] to codes without bias; outside: ValueError.

        The rounding is of the signed value and monotone in the dither.
        """
        values = np.asarray(values, np.float32)
        if not (np.abs(values) <= 1).all():
            raise ValueError("levels.encode takes values in [-1, 1]: divide by the norm first")
        return self.encode_scaled(values, np.array(2**SHIFT, np.float32), dither)

    def encode_scaled(self, x: np.ndarray, scale: np.ndarray, dither: np.ndarray) -> np.ndarray:
        """Codes of ``x·scale/2^24``, with a scale from `scale_for`; a scale of 0 gives code 0.

        Elements below 2^-126 count as 0, since processors may flush them to zero anyway.
        """
        bits = np.asarray(x, np.float32).view(np.uint32)
        magnitude = bits & np.uint32(0x7FFFFFFF)
        usable = (scale > 0) & (magnitude >= np.uint32(1 << 23))
        magnitude = np.where(usable, magnitude, np.uint32(0)).view(np.float32)
        negative = bits >> np.uint32(31) == 1
        dither = np.where(negative, ~dither, dither).astype(np.uint32)
        scaled = np.minimum((magnitude * scale).astype(np.float32).view(np.uint32), ONE_BITS)
        index = np.where(
            scaled < self.smallest_bits, self._below(scaled, dither), self._between(scaled, dither)
        )
        sign = np.where(negative & (index > 0), self.count + 1, 0)
        return (index + sign).astype(np.uint8)

    @property
    def smallest_bits(self) -> np.uint32:
        """Bits of the smallest level times 2^24."""
        return (self.values[-1:] * np.float32(2**SHIFT)).view(np.uint32)[0]

    @property
    def share_scale(self) -> np.float32:
        """What makes the smallest level, times 2^24, at least 2^24."""
        return scale_for(np.array([self.smallest_bits]).view(np.float32))[0]

    def _between(self, scaled: np.ndarray, dither: np.ndarray) -> np.ndarray:
        """Index of one of the two levels around ``scaled``: up with the share of the gap below."""
        exponent = (scaled >> np.uint32(23)).astype(np.int64)
        mantissa = scaled & np.uint32(0x7FFFFF)
        step = np.searchsorted(self.thresholds, mantissa, side="right") - 1
        gap = self.thresholds[step + 1] - self.thresholds[step]
        share = (dither >> np.uint32(9)).astype(np.float32)
        random = (share * (gap.astype(np.float32) / np.float32(2**23))).astype(np.uint32)
        up = mantissa - self.thresholds[step] + random >= gap
        return 1 + self.octave * (127 + SHIFT - exponent) - step - up

    def _below(self, scaled: np.ndarray, dither: np.ndarray) -> np.ndarray:
        """The smallest level with probability ``scaled/smallest``, else 0."""
        inside = np.minimum(scaled, self.smallest_bits).view(np.float32)
        random = (~dither >> np.uint32(32 - LOW_BITS)).astype(np.float32)
        return np.where(inside * self.share_scale > random, self.count, 0)


def packed_size(size: int, bits: int) -> int:
    """Bytes of ``size`` codes: every eight of them fill ``bits`` bytes.

    >>> packed_size(9, 3)
    6
    """
    return -(-size // 8) * bits


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes, one a byte, to a little-endian string of ``bits``-bit numbers.

    >>> pack(np.array([1, 2, 3], np.uint8), 4)
    array([33,  3,  0,  0], dtype=uint8)
    """
    padded = np.pad(codes, (0, -codes.size % 8))
    each = np.unpackbits(padded[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(each, bitorder="little")


def unpack(packed: np.ndarray, bits: int, size: int) -> np.ndarray:
    """The inverse of `pack`.

    >>> unpack(np.array([33, 3, 0, 0], np.uint8), 4, 3)
    array([1, 2, 3], dtype=uint8)
    """
    each = np.unpackbits(packed, bitorder="little").reshape(-1, bits)
    return np.packbits(each, axis=1, bitorder="little")[:size, 0]


def decode(codes: np.ndarray, levels: Levels, norm: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """``level·factor·norm``; NaN where the norm is not finite."""
    with np.errstate(over="ignore"):
        value = (
            levels.decode(codes)
            * np.float32(factor)
            * np.where(np.isfinite(norm), norm, np.float32(0))
        )
    return np.where(np.isfinite(norm), value, np.float32(np.nan))
