"""Exponential levels 1, 1/b, 1/b², …, b^-(m−1), and 0, for b = 2, √2 or ⁴√2.

A code of ``bits`` bits: the top bit is the sign, the others the index; index 0 is zero, index 1
the level 1, index m = 2^(bits−1) − 1 the smallest level. Negative zero is never emitted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod_gqsgd import sections, shards
from horovod_gqsgd.codecs.base import Codec, Round, invalid, register_codec
from horovod_gqsgd.dither import Dither

if TYPE_CHECKING:
    from horovod_gqsgd.config import Config

#: Values are rounded as |y|·2^24, which keeps every scale and every level a normal float32.
SHIFT = 24
ONE_BITS = np.uint32((127 + SHIFT) << 23)

#: Resolution of the interval between zero and the smallest level: float32 holds it exactly.
LOW_BITS = 24

#: The level 1 as an integer in reductions.
UNIT = 40

#: Levels per octave of every base.
OCTAVES = {2.0: 1, 2.0**0.5: 2, 2.0**0.25: 4}


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


def decode(codes: np.ndarray, levels: Levels, norm: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """``level·factor·norm``; NaN where the norm is not finite."""
    with np.errstate(over="ignore"):
        value = (
            levels.decode(codes)
            * np.float32(factor)
            * np.where(np.isfinite(norm), norm, np.float32(0))
        )
    return np.where(np.isfinite(norm), value, np.float32(np.nan))


@register_codec
class ExponentialCodec(Codec):
    """Packed codes, combined by a registered reduction.

    Every rank owns 1/n of the codes: a scatter brings it the n shards, the reduction combines them,
    a gather returns the result, with the traffic of a ring allreduce. A gather may be fused with
    others, a scatter never is: of a small message every rank gathers all codes and reduces them
    itself. The dither belongs to the element, so that both ways give the same bits.
    """

    levels = "exponential"
    parameters = ("base", "reduction")
    dtype = np.uint8
    what = "code"
    needs_all = True
    cuda = True

    @classmethod
    def complete(cls, config: "Config") -> dict[str, Any]:
        from horovod_gqsgd.reductions import get_reduction  # which needs these levels

        bits = config.bits
        if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 8:
            raise invalid("bits", bits, '2 to 8 with levels="exponential"')
        octave = _octave(config.base, bits)
        reduction = config.reduction or "exact"
        get_reduction(reduction)
        base = next(base for base, each in OCTAVES.items() if each == octave)
        return {"base": base, "reduction": reduction}

    @classmethod
    def identity(cls, config: "Config") -> dict[str, str]:
        return {"reduction": config.reducer.identity}

    @classmethod
    def stays_on_device(cls, config: "Config") -> bool:
        from horovod_gqsgd.reductions import BUILTIN

        return config.reduction in BUILTIN

    @classmethod
    def mean(
        cls,
        config: "Config",
        arrays: Sequence[np.ndarray],
        norm: np.ndarray,
        dither: Dither,
        factor: float,
    ) -> np.ndarray:
        levels, n, size = config.code, len(arrays), norm.size
        scale, draw = scale_for(norm), getattr(dither, config.rounding)
        rows = [levels.encode_scaled(x, scale, draw(i, n, 0, size)) for i, x in enumerate(arrays)]
        reduced = config.reducer.reduce(np.stack(rows), levels, dither.reduction(0, size))
        return decode(reduced, levels, norm, factor)

    @property
    def reduction(self) -> str:
        return self.config.reducer.name

    @property
    def unit(self) -> int:
        """Bytes of a group of eight codes."""
        return self.config.bits

    @property
    def section(self) -> int:
        return sections.code_elements(self.config.bits)

    def length(self, size: int) -> int:
        """Bytes: whole groups of eight codes."""
        return shards.group_count(size) * self.config.bits

    def ways(self) -> tuple[tuple[Round, ...], ...]:
        by_shards = Round("codes", "scatter", reduce=True), Round("reduced", "gather")
        return by_shards, (Round("codes", "gather", reduce=True),)

    def second_way(self, length: Any, n: Any) -> Any:
        """Of a small message every rank reduces all codes."""
        return shards.gathers(length, n)

    def encode(
        self,
        x: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        dither: Dither,
        start: int = 0,
        stop: int | None = None,
        own: np.ndarray | None = None,
    ) -> None:
        from horovod_gqsgd.kernels import exponential

        config = self.config
        scheme = (dither, config.rounding, self.rank, self.n)
        own = None if own is None else own.view(np.float32)
        exponential.encode(x, norm, config.block, config.code, out, *scheme, start, stop, own)

    def reduce(
        self,
        rows: np.ndarray,
        out: np.ndarray,
        sizes: Sequence[int],
        low: int,
        dithers: Sequence[Dither],
    ) -> None:
        from horovod_gqsgd.kernels import reduce

        config, bits = self.config, self.config.bits
        for piece in shards.pieces(sizes, low, low + out.size // bits):
            part = slice(piece.low * bits, piece.high * bits)
            where = (out[part], piece.elements, dithers[piece.tensor], piece.start)
            reduce.reduce(config.reducer, rows[:, part], config.code, *where)

    def decode(
        self,
        payload: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        factor: float,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        from horovod_gqsgd.kernels import exponential

        config = self.config
        exponential.decode(payload, norm, config.block, config.code, out, factor, start, stop)


def _octave(base: float | None, bits: int) -> int:
    """Levels per octave for a base; by default the most with which the last is at most 2^-10."""
    if base is None:
        return 4 if bits >= 7 else 2 if bits == 6 else 1
    if isinstance(base, int | float) and not isinstance(base, bool):
        for known, octave in OCTAVES.items():
            if math.isclose(base, known, rel_tol=1e-6):
                return octave
    raise invalid("base", base, "2, 2**0.5, 2**0.25 or None")
