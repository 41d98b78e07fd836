"""Tensors through a scheme on the CPU: what adapters call, in their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod_gqsgd import lanes, norms, sections, shards
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.exponential import Levels


@dataclass(frozen=True)
class Codec:
    """A configuration as ``rank`` of ``n`` workers uses it; flat contiguous arrays in and out.

    With ``start`` and ``stop``, `encode` and `decode` do those elements of a tensor alone, as
    `sections` divides it.
    """

    config: Config
    rank: int
    n: int

    def __post_init__(self) -> None:
        self.config.check_world(self.n)

    def norm_count(self, size: int) -> int:
        """Norms of a tensor with ``size`` elements."""
        return norms.blocks(size, self.config.block)

    def local_norms(self, x: np.ndarray, out: np.ndarray) -> None:
        """The contribution of this rank: int32 for Max if p = ∞, else float64 for Sum."""
        from horovod_gqsgd.kernels import norm

        norm.local(x, self.config.q, self.config.p, self.config.block, out)

    def join_norms(self, reduced: np.ndarray) -> np.ndarray:
        """Float32 norms from what the ranks' contributions were reduced to."""
        return norms.joined(reduced, self.config.p)

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
        """Quantise ``x`` into ``out``: int32 words, to be summed, or packed codes, uint8.

        ``own``: what `local_norms` gave, if it was for Max.
        """
        config = self.config
        kernels, levels = self._levels()
        scheme = (dither, config.rounding, self.rank, self.n)
        own = None if own is None else own.view(np.float32)
        kernels.encode(x, norm, config.block, levels, out, *scheme, start, stop, own)

    def _levels(self) -> tuple[Any, Any]:
        """The module with the kernels, imported late, and how they are told the levels."""
        raise NotImplementedError


class LinearCodec(Codec):
    """Linear levels: digits in int32 words, summed by an ordinary allreduce."""

    def _levels(self) -> tuple[Any, int]:
        from horovod_gqsgd.kernels import linear

        return linear, self.config.bits

    def length(self, size: int) -> int:
        """Words of a tensor with ``size`` elements."""
        return lanes.word_count(size, self.config.bits)

    @property
    def section(self) -> int:
        """Elements that should travel together, of tensors that are larger."""
        return sections.ELEMENTS

    def decode(
        self,
        words: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        factor: float,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """The mean times ``factor`` from summed ``words``."""
        kernels, bits = self._levels()
        kernels.decode(words, norm, self.config.block, bits, out, self.n, factor, start, stop)


class ExponentialCodec(Codec):
    """Exponential levels: packed codes, combined by a registered reduction."""

    def _levels(self) -> tuple[Any, Levels]:
        from horovod_gqsgd.kernels import exponential

        return exponential, self.config.code

    def length(self, size: int) -> int:
        """Packed codes of a tensor with ``size`` elements: whole groups of ``bits`` bytes."""
        return shards.group_count(size) * self.config.bits

    @property
    def section(self) -> int:
        """Elements that should travel together, of tensors that are larger."""
        return sections.code_elements(self.config.bits)

    def reduce(
        self,
        rows: np.ndarray,
        packed: np.ndarray,
        sizes: Sequence[int],
        low: int,
        dithers: Sequence[Dither],
    ) -> None:
        """Combine the ranks' codes of a part of a bucket.

        ``rows``, uint8[n, bytes], are the groups from ``low`` on of a bucket of tensors with the
        given ``sizes``, as each rank sent them; the result has the same layout.
        """
        from horovod_gqsgd.kernels import reduce

        config, bits = self.config, self.config.bits
        for piece in shards.pieces(sizes, low, low + packed.size // bits):
            part = slice(piece.low * bits, piece.high * bits)
            where = (packed[part], piece.elements, dithers[piece.tensor], piece.start)
            reduce.reduce(config.reducer, rows[:, part], config.code, *where)

    def decode(
        self,
        packed: np.ndarray,
        norm: np.ndarray,
        out: np.ndarray,
        factor: float,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """The mean times ``factor`` from reduced codes."""
        kernels, levels = self._levels()
        kernels.decode(packed, norm, self.config.block, levels, out, factor, start, stop)
