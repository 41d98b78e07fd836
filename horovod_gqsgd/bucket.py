"""The tensors of one call as flat arrays: what is sent first, and what follows once it is back."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from horovod_gqsgd import agreement
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.codec import ExponentialCodec, LinearCodec
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.statistics import statistics


def split(array: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
    """Consecutive parts of an array."""
    return np.split(array, np.cumsum(lengths)[:-1])


class Agreed(NamedTuple):
    """What all ranks know after the exchange of norms, tensor by tensor."""

    step: int
    norms: list[np.ndarray]
    dithers: list[Dither]


class Bucket:
    """One tensor, or a group, of given ``sizes`` on its way through a scheme.

    ``head`` is the int32 vector for Max: header, with exponential levels the roll, and the norms
    if p = ∞. Otherwise the norms are ``sums``, float64 for Sum.
    """

    def __init__(
        self,
        codec: LinearCodec | ExponentialCodec,
        name: str,
        sizes: Sequence[int],
        dtypes: Sequence[str],
        factor: float,
    ) -> None:
        self.codec, self.name, self.sizes, self.factor = codec, name, sizes, factor
        single = len(sizes) == 1
        self.names = [name if single else f"{name}.{i}" for i in range(len(sizes))]
        self.counts = [codec.norm_count(size) for size in sizes]
        self.by_max = codec.config.p == "inf"
        self.start = HEADER + (codec.n if isinstance(codec, ExponentialCodec) else 0)
        self.head_size = self.start + self.by_max * sum(self.counts)
        self.sums_size = 0 if self.by_max else sum(self.counts)
        self.context = {
            "dtype": ", ".join(dict.fromkeys(dtypes)),
            "elements": ", ".join(map(str, sizes)),
            "factor": f"{factor:.9g}",
        }

    def write(
        self, arrays: Sequence[np.ndarray], head: np.ndarray, sums: np.ndarray, step: int
    ) -> None:
        """Fill ``head`` and ``sums`` with what this rank has."""
        codec = self.codec
        agreement.write_header(head, codec.config.fingerprint(*self.context.values()), step)
        if self.start > HEADER:
            agreement.write_roll(head[HEADER : self.start], codec.rank)
        vector = head[self.start :] if self.by_max else sums
        with statistics.time("norm"):
            for array, part in zip(arrays, split(vector, self.counts), strict=True):
                codec.local_norms(array, part)

    def description(self) -> np.ndarray:
        """What ranks that disagree tell one another, as bytes of fixed length."""
        return agreement.describe(self.codec.config, self.context)

    def read(self, head: np.ndarray, sums: np.ndarray) -> Agreed:
        """Step, norms and dithers from reduced ``head`` and ``sums`` of ranks that agree."""
        codec, config = self.codec, self.codec.config
        if self.start > HEADER:
            agreement.check_roll(head[HEADER : self.start], self.name)
        norms = codec.join_norms(head[self.start :] if self.by_max else sums)
        _agreed, step = agreement.read_header(head)
        dithers = [Dither(config.seed, step, name) for name in self.names]
        return Agreed(step, split(norms, self.counts), dithers)

    def encode(
        self, arrays: Sequence[np.ndarray], agreed: Agreed, parts: Sequence[np.ndarray]
    ) -> None:
        """Quantise every tensor into its part."""
        with statistics.time("encode"):
            for encoded in zip(arrays, agreed.norms, parts, agreed.dithers, strict=True):
                self.codec.encode(*encoded)

    def decode(
        self, parts: Sequence[np.ndarray], agreed: Agreed, outputs: Sequence[np.ndarray]
    ) -> None:
        """Fill the outputs from what has become of the parts."""
        with statistics.time("decode"):
            for part, norm, output in zip(parts, agreed.norms, outputs, strict=True):
                self.codec.decode(part, norm, output, self.factor)
