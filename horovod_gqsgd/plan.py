"""The tensors of one call as flat arrays: what is sent first, and what follows once it is back."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from horovod_gqsgd import agreement
from horovod_gqsgd.agreement import HEADER
from horovod_gqsgd.codecs import Codec
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.sections import Part, Section
from horovod_gqsgd.statistics import statistics


def spans(lengths: Sequence[int], start: int = 0) -> list[slice]:
    """Consecutive parts of an array.

    >>> spans([2, 3], 10)
    [slice(10, 12, None), slice(12, 15, None)]
    """
    return [slice(*ends) for ends in pairwise(accumulate(lengths, initial=start))]


def _elements(sizes: Sequence[int]) -> str:
    """The sizes of a group for messages, which many of them would not fit in.

    >>> _elements([2000, 40]), _elements([2000] * 200)
    ('2000, 40', '400000 in 200 tensors, digest 9d0eca12')
    """
    text = ", ".join(map(str, sizes))
    if len(text) <= agreement.LONGEST:
        return text
    return f"{sum(sizes)} in {len(sizes)} tensors, digest {agreement.digest(text)}"


class Agreed(NamedTuple):
    """What all ranks know after the exchange of norms, tensor by tensor."""

    norms: list[np.ndarray]
    dithers: list[Dither]


class Plan:
    """One tensor, or a group, of given ``sizes`` on its way through a scheme.

    ``head`` is the int32 vector for Max: header, with exponential levels the roll, and the norms
    if p = ∞. Otherwise the norms are ``sums``, float64 for Sum. Words or codes of the tensors lie
    one after the other, at their ``spans``. ``ranks`` are those of the process set, if it is not
    that of all; errors name them. Nothing here changes from step to step.
    """

    def __init__(
        self,
        codec: Codec,
        name: str,
        sizes: Sequence[int],
        dtypes: Sequence[str],
        factor: float,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.codec, self.name, self.sizes, self.factor = codec, name, sizes, factor
        self.ranks = ranks
        single = len(sizes) == 1
        self.names = [name if single else f"{name}.{i}" for i in range(len(sizes))]
        self.counts = [codec.norm_count(size) for size in sizes]
        self.by_max = codec.config.p == "inf"
        self.start = HEADER + codec.n * codec.needs_all
        self.head_size = self.start + self.by_max * sum(self.counts)
        self.sums_size = 0 if self.by_max else sum(self.counts)
        self.norm_spans = spans(self.counts, self.start if self.by_max else 0)
        self.spans = spans([codec.length(size) for size in sizes])
        self.length = self.spans[-1].stop
        parts = [Part(i, 0, size) for i, size in enumerate(sizes)]
        self.whole = Section(parts, 0, self.length)
        self.context = {
            "dtype": ", ".join(dict.fromkeys(dtypes)),
            "elements": _elements(sizes),
            "factor": f"{factor:.9g}",
        }

    @cached_property
    def fingerprint(self) -> int:
        """What ranks must have in common, as a number."""
        return self.codec.config.fingerprint(*self.context.values())

    def description(self) -> np.ndarray:
        """What ranks that disagree tell one another, as bytes of fixed length."""
        return agreement.describe(self.codec.config, self.context)

    def write(
        self, arrays: Sequence[np.ndarray], head: np.ndarray, sums: np.ndarray, step: int
    ) -> None:
        """Fill ``head`` and ``sums`` with what this rank has."""
        agreement.write_header(head, self.fingerprint, step)
        if self.start > HEADER:
            agreement.write_roll(head[HEADER : self.start], self.codec.rank)
        vector = head if self.by_max else sums
        with statistics.time("norm"):
            for array, span in zip(arrays, self.norm_spans, strict=True):
                self.codec.local_norms(array, vector[span])

    def read(self, head: np.ndarray, sums: np.ndarray) -> Agreed:
        """Norms and dithers from reduced ``head`` and ``sums`` of ranks that agree."""
        vector = head if self.by_max else sums
        norms = [self.codec.join_norms(vector[span]) for span in self.norm_spans]
        return Agreed(norms, self.dithers(head))

    def dithers(self, head: np.ndarray) -> list[Dither]:
        """The dithers of this step; raises where the scheme misses a rank that has joined."""
        if self.start > HEADER:
            agreement.check_roll(head[HEADER : self.start], self.name, self.ranks)
        _agreed, step = agreement.read_header(head)
        return [Dither(self.codec.config.seed, step, name) for name in self.names]

    def encode(
        self,
        arrays: Sequence[np.ndarray],
        agreed: Agreed,
        out: np.ndarray,
        section: Section | None = None,
        own: np.ndarray | None = None,
    ) -> None:
        """Quantise the tensors, or a section of them, into their places in ``out``.

        ``own``: the head as this rank wrote it; what is all zeros by it is not read again.
        """
        with statistics.time("encode"):
            for i, start, stop in (section or self.whole).parts:
                norms, dither, place = agreed.norms[i], agreed.dithers[i], out[self.spans[i]]
                mine = own[self.norm_spans[i]] if own is not None and self.by_max else None
                self.codec.encode(arrays[i], norms, place, dither, start, stop, mine)

    def decode(
        self,
        reduced: np.ndarray,
        agreed: Agreed,
        outputs: Sequence[np.ndarray],
        section: Section | None = None,
    ) -> None:
        """Fill the outputs, or a section of them, from what has become of the words or codes."""
        with statistics.time("decode"):
            for i, *elements in (section or self.whole).parts:
                scheme = (agreed.norms[i], outputs[i], self.factor)
                self.codec.decode(reduced[self.spans[i]], *scheme, *elements)
