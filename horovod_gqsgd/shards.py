"""Shards: how a bucket of exponential codes is divided among the ranks that reduce it.

A bucket holds the packed codes of one or more tensors, one after the other, each padded to whole
groups of eight codes (``bits`` bytes). Every rank derives the same division from the sizes alone.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

#: Up to this many bytes of codes from all ranks together, every rank gathers and reduces all of
#: them, which Horovod fuses; beyond, each reduces its shard (docs/reductions.md has the crossover).
GATHER_LIMIT = 2**19


class Piece(NamedTuple):
    """Codes of one tensor: elements from ``start``, and the groups of the shard they fill."""

    tensor: int
    start: int
    elements: int
    low: int
    high: int


def group_count(size: int) -> int:
    """Groups of eight codes that ``size`` elements occupy.

    >>> group_count(17)
    3
    """
    return -(-size // 8)


def gathers(length: int, n: int) -> bool:
    """Whether all ranks gather so many bytes of codes rather than reduce a shard of them."""
    return length * n <= GATHER_LIMIT


def bounds(groups: int, n: int) -> list[int]:
    """Where the shards of n ranks begin, and where the last one ends; as even as can be.

    >>> bounds(10, 3)
    [0, 3, 6, 10]
    """
    return [groups * rank // n for rank in range(n + 1)]


def pieces(sizes: Sequence[int], low: int, high: int) -> Iterator[Piece]:
    """What the groups ``low`` … ``high − 1`` of a bucket consist of.

    >>> [*pieces([20, 9], 2, 4)]   # groups 0 to 2 and 3 to 4
    [Piece(tensor=0, start=16, elements=4, low=0, high=1),
     Piece(tensor=1, start=0, elements=8, low=1, high=2)]
    """
    begin = 0
    for tensor, size in enumerate(sizes):
        first, last = max(low, begin), min(high, begin + group_count(size))
        if first < last:
            start = 8 * (first - begin)
            elements = min(8 * (last - begin), size) - start
            yield Piece(tensor, start, elements, first - low, last - low)
        begin += group_count(size)
