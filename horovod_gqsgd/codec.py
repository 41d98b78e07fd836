"""A tensor through the linear scheme on the CPU: what adapters call, in their order."""

from dataclasses import dataclass

import numpy as np

from horovod_gqsgd import lanes, norms
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither


@dataclass(frozen=True)
class LinearCodec:
    """A configuration as ``rank`` of ``n`` workers uses it; flat contiguous arrays in and out."""

    config: Config
    rank: int
    n: int

    def __post_init__(self) -> None:
        self.config.check_world(self.n)

    def norm_count(self, size: int) -> int:
        """Norms of a tensor with ``size`` elements."""
        return norms.blocks(size, self.config.block)

    def word_count(self, size: int) -> int:
        """Words of a tensor with ``size`` elements."""
        return lanes.word_count(size, self.config.bits)

    def local_norms(self, x: np.ndarray, out: np.ndarray) -> None:
        """The contribution of this rank: int32 for Max if p = ∞, else float64 for Sum."""
        from horovod_gqsgd.kernels import norm

        norm.local(x, self.config.q, self.config.p, self.config.block, out)

    def join_norms(self, reduced: np.ndarray) -> np.ndarray:
        """Float32 norms from what the ranks' contributions were reduced to."""
        return norms.joined(reduced, self.config.p)

    def encode(self, x: np.ndarray, norm: np.ndarray, words: np.ndarray, dither: Dither) -> None:
        """Quantise ``x`` into int32 ``words``, to be summed over the ranks."""
        from horovod_gqsgd.kernels import linear

        config = self.config
        scheme = (dither, config.rounding, self.rank, self.n)
        linear.encode(x, norm, config.block, config.bits, words, *scheme)

    def decode(self, words: np.ndarray, norm: np.ndarray, out: np.ndarray, factor: float) -> None:
        """The mean times ``factor`` from summed ``words``."""
        from horovod_gqsgd.kernels import linear

        linear.decode(words, norm, self.config.block, self.config.bits, out, self.n, factor)
