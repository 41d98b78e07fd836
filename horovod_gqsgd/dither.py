"""Dither: keyed, counter-based random words for stochastic rounding.

A dither word is a function of seed, step, tensor name, element and rank, and of nothing else: no
state, no draw from anybody's generator, the same 32 bits on a CPU, on a GPU and here.

Philox4x32-10 turns (seed, step, name, who) into four 32-bit keys; murmur3's finaliser, keyed
before and between its two multiplications, turns an element's index into its word. For one key
the words of 2^32 consecutive elements are a permutation of all 32-bit numbers.
"""

from dataclasses import dataclass

import numpy as np

MASK = 0xFFFFFFFF

#: Who a stream belongs to: a rank (0, 1, …), all ranks together, or the reduction.
SHARED = 0xFFFFFFFF
REDUCTION = 0xFFFFFFFE


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).

    >>> [f"{word:08x}" for word in philox4x32((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            right >> 32 ^ c1 ^ k0,
            right & MASK,
            left >> 32 ^ c3 ^ k1,
            left & MASK,
        )
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return c0, c1, c2, c3


def fnv1a64(name: str) -> int:
    """FNV-1a of the UTF-8 bytes of ``name``, 64 bits.

    >>> f"{fnv1a64('foobar'):016x}"
    '85944171f73967e8'
    """
    digest = 0xCBF29CE484222325
    for byte in name.encode():
        digest = (digest ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return digest


def finalise(word: np.ndarray, key: int = 0) -> np.ndarray:
    """murmur3's 32-bit finaliser, with ``key`` between its two multiplications.

    >>> int(finalise(np.array([1], np.uint32))[0])
    1364076727
    """
    word = word ^ (word >> np.uint32(16))
    word = word * np.uint32(0x85EBCA6B) ^ np.uint32(key)
    word = word ^ (word >> np.uint32(13))
    word = word * np.uint32(0xC2B2AE35)
    return word ^ (word >> np.uint32(16))


def hash32(index: np.ndarray, k0: int, k1: int) -> np.ndarray:
    """Hash the low words of ``index`` under the keys ``k0`` (before) and ``k1`` (between)."""
    return finalise(index.astype(np.uint32) ^ np.uint32(k0), k1)


def place(rank: int, n: int, k2: int, k3: int) -> int:
    """π(rank): how many of the n ranks have a smaller hash, a permutation as the hash has no ties.

    >>> sorted(place(rank, 5, 123, 456) for rank in range(5))
    [0, 1, 2, 3, 4]
    """
    order = hash32(np.arange(n), k2, k3)
    return int((order < order[rank]).sum())


@dataclass(frozen=True)
class Dither:
    """The dither of one tensor at one step.

    >>> Dither(seed=0, step=0, name="weight").independent(rank=1, n=4, start=0, count=2)
    array([1458887372, 1935607450], dtype=uint32)
    """

    seed: int
    step: int
    name: str

    def keys(self, who: int, high: int = 0) -> tuple[int, ...]:
        """Four keys for a rank, `SHARED` or `REDUCTION`; ``high``: upper half of the index."""
        name = fnv1a64(self.name)
        return philox4x32((self.seed, self.step & MASK, who, high), (name & MASK, name >> 32))

    def stream(self, who: int, start: int, count: int) -> np.ndarray:
        """Uniform words of the elements ``start … start + count - 1``."""
        index = np.arange(start, start + count, dtype=np.uint64)
        words = np.empty(count, np.uint32)
        for high in range(start >> 32, (start + count - 1 >> 32) + 1):
            here = index >> np.uint64(32) == high
            words[here] = hash32(index[here], *self.keys(who, high)[:2])
        return words

    def independent(self, rank: int, n: int, start: int, count: int) -> np.ndarray:  # noqa: ARG002
        """Every rank draws its own words; ``n`` is there for the symmetry of the two."""
        return self.stream(rank, start, count)

    def correlated(self, rank: int, n: int, start: int, count: int) -> np.ndarray:
        """``u_i = ((π(i) + a) mod n + γ_i) / n`` in units of 2^-32.

        a in {0..n−1} is shared by the ranks and drawn per element, γ_i is private, π is a
        permutation of the ranks shared by the tensor at this step. Every u_i is uniform, and no
        two ranks draw from the same n-th of [0, 1): the covariance of their rounding errors is
        never positive, because rounding is monotone in u and strata without replacement are
        negatively associated.
        """
        if n == 1:
            return self.stream(rank, start, count)
        width = np.uint64((1 << 32) // n)
        shared = self.stream(SHARED, start, count).astype(np.uint64)
        private = self.stream(rank, start, count).astype(np.uint64)
        offset = shared * np.uint64(n) >> np.uint64(32)
        stratum = (np.uint64(place(rank, n, *self.keys(SHARED)[2:])) + offset) % np.uint64(n)
        return (stratum * width + (private * width >> np.uint64(32))).astype(np.uint32)

    def reduction(self, start: int, count: int) -> np.ndarray:
        """Words for the rounding inside a reduction: the same whoever carries it out."""
        return self.stream(REDUCTION, start, count)
