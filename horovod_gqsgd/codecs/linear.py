"""Linear levels {−s..s}/s: standard dithering against the global norm.

``E[q]·N/s == x`` and ``|q·N/s − x| < N/s`` for every element. Digits of all ranks add up as
integers, and a lane of ``bits`` bits holds the sum of n ranks for any data, because s is chosen
for n.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod_gqsgd import lanes, sections
from horovod_gqsgd.codecs.base import Codec, Round, invalid, register_codec
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.lanes import LANES

if TYPE_CHECKING:
    from horovod_gqsgd.config import Config


def level_count(bits: int, n: int) -> int:
    """``s = floor((2^bits − 1) / 2n)``, the levels on each side of zero.

    >>> level_count(8, 4), level_count(5, 2)
    (31, 7)
    >>> level_count(4, 16)
    Traceback (most recent call last):
    ValueError: bits=4 cannot hold 16 workers (needs at least 6): raise bits, or use
    levels="exponential"
    """
    s = (2**bits - 1) // (2 * n)
    if s >= 1:
        return s
    enough = [width for width in LANES if 2**width - 1 >= 2 * n]
    fix = f"needs at least {enough[0]}" if enough else "no width can"
    raise ValueError(
        f"bits={bits} cannot hold {n} workers ({fix}): "
        f'{"raise bits, or " if enough else ""}use levels="exponential"'
    )


def fraction_bits(s: int) -> int:
    """``F = min(16, 22 − bit_length(s − 1))``: s·2^F ≤ 2^22 keeps fixed point exact in float32."""
    return min(16, 22 - (s - 1).bit_length())


def encode(x: np.ndarray, norm: np.ndarray, s: int, dither: np.ndarray) -> np.ndarray:
    """Round ``x·s/norm`` to an integer in {−s..s} without bias, ``floor(x·s/norm + u)``.

    One float multiplication, then integers: every machine gives the same digits. Where the norm
    is 0 or not finite the digit is 0.

    >>> encode(np.array([1, -1, 0.5], np.float32), np.float32(1), 3, np.uint32(1 << 31))
    array([ 3, -3,  2], dtype=int32)
    """
    fraction = fraction_bits(s)
    limit = s << fraction
    usable = np.isfinite(norm) & (norm > 0)
    scale = np.where(usable, np.float32(limit) / np.where(usable, norm, 1), 0).astype(np.float32)
    scaled = np.rint(np.where(usable, x, 0).astype(np.float32) * scale)
    fixed = np.clip(scaled, -limit, limit).astype(np.int32)
    return (fixed + (dither >> np.uint32(32 - fraction)).astype(np.int32)) >> np.int32(fraction)


def decode(total: np.ndarray, norm: np.ndarray, s: int, n: int, factor: float = 1.0) -> np.ndarray:
    """``fl(total/(s·n))·factor·norm``, the mean of n ranks for ``factor`` 1; NaN for a bad norm.

    A total of ±s·n gives ±norm exactly.
    """
    mean = total.astype(np.float32) / np.float32(s * n)
    with np.errstate(over="ignore"):
        value = mean * np.float32(factor) * np.where(np.isfinite(norm), norm, np.float32(0))
    return np.where(np.isfinite(norm), value, np.float32(np.nan))


@register_codec
class LinearCodec(Codec):
    """Digits in int32 words, summed by an ordinary allreduce."""

    levels = "linear"
    dtype = np.int32
    what = "word"
    cuda = True

    @classmethod
    def complete(cls, config: "Config") -> dict[str, Any]:
        if isinstance(config.bits, bool) or config.bits not in tuple(LANES):
            widths = " or ".join(map(str, LANES))
            raise invalid("bits", config.bits, f'{widths} with levels="linear"')
        return {}

    @classmethod
    def check_world(cls, config: "Config", n: int) -> None:
        level_count(config.bits, n)

    @classmethod
    def mean(
        cls,
        config: "Config",
        arrays: Sequence[np.ndarray],
        norm: np.ndarray,
        dither: Dither,
        factor: float,
    ) -> np.ndarray:
        bits, n, size = config.bits, len(arrays), norm.size
        s, draw = level_count(bits, n), getattr(dither, config.rounding)
        digits = (encode(x, norm, s, draw(i, n, 0, size)) for i, x in enumerate(arrays))
        words = [lanes.pack(each, bits) for each in digits]
        total = np.sum(words, axis=0, dtype=np.int64).astype(np.int32)
        return decode(lanes.unpack(total, bits, size, s * n), norm, s, n, factor)

    @property
    def section(self) -> int:
        return sections.ELEMENTS

    def length(self, size: int) -> int:
        return lanes.word_count(size, self.config.bits)

    def ways(self) -> tuple[tuple[Round, ...], ...]:
        return ((Round("words", "sum"),),)

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
        from horovod_gqsgd.kernels import linear

        config = self.config
        scheme = (dither, config.rounding, self.rank, self.n)
        own = None if own is None else own.view(np.float32)
        linear.encode(x, norm, config.block, config.bits, out, *scheme, start, stop, own)

    def decode(
        self,
        payload: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        factor: float,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        from horovod_gqsgd.kernels import linear

        config = self.config
        linear.decode(payload, norm, config.block, config.bits, out, self.n, factor, start, stop)
