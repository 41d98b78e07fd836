"""Sections: large buckets travel in parts, so that kernels work on one while others are under way.

Every rank derives the same division from the sizes alone. The words and codes are those of the
whole; only how many collectives carry them differs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

#: Elements of a section of words, about: a multiple of 120 Ki, where tiles of every width begin.
ELEMENTS = 18 * 120 * 1024

#: Bytes of a section of codes, about. In a larger alltoall two ranks send to one another in turn
#: rather than at once (docs/reductions.md tells why, and has the times).
CODES = 448 * 1024
#: Elements that the kernels of exponential levels work on at once.
RUN = 4096

#: More elements than any bucket has: one section.
WHOLE = 2**62


class Part(NamedTuple):
    """Elements of one tensor."""

    tensor: int
    start: int
    stop: int


class Section(NamedTuple):
    """Parts of tensors, and where their words or codes lie in those of the bucket."""

    parts: list[Part]
    low: int
    high: int


def code_elements(bits: int) -> int:
    """Elements of a section of codes.

    >>> code_elements(8), code_elements(3)
    (458752, 1220608)
    """
    return CODES * 8 // bits // RUN * RUN


def cut(sizes: Sequence[int], length: Callable[[int], int], most: int = ELEMENTS) -> list[Section]:
    """Divide a bucket, ``length`` the words or bytes of codes that so many elements take.

    >>> for section in cut([20, 3, 30], lambda elements: 2 * elements, 10):
    ...     print(section.parts, section.low, section.high)
    [Part(tensor=0, start=0, stop=10)] 0 20
    [Part(tensor=0, start=10, stop=20)] 20 40
    [Part(tensor=1, start=0, stop=3), Part(tensor=2, start=0, stop=10)] 40 66
    [Part(tensor=2, start=10, stop=20)] 66 86
    [Part(tensor=2, start=20, stop=30)] 86 106
    """
    sections: list[Section] = []
    parts: list[Part] = []
    begin = low = filled = 0
    for tensor, size in enumerate(sizes):
        start = 0
        while start < size:
            # the last one may be half as large again, rather than leave a small one
            stop = start + most if 2 * (size - start) >= 3 * most else size
            parts.append(Part(tensor, start, stop))
            filled += stop - start
            if filled >= most:
                sections.append(Section(parts, low, begin + length(stop)))
                parts, low, filled = [], begin + length(stop), 0
            start = stop
        begin += length(size)
    if parts:
        sections.append(Section(parts, low, begin))
    return sections
