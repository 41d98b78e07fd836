"""Lanes: signed digits side by side in 32-bit words that an ordinary integer Sum adds.

``word = Σ_k digit_k · 2^(bits·k)``. Zero words are zero digits, so a rank that contributes
nothing, as one that has joined, contributes a zero gradient.

Layout: a tile is up to K·1024 elements for K lanes a word. With w = ceil(len/K) words in a tile
(1,024 in a full one), its element e is lane e // w of word e % w, so that a lane of a full tile is
a contiguous run of 1,024 elements.
"""

import numpy as np

#: Lane widths, each with the number of lanes that fill a 32-bit word.
LANES = {3: 10, 4: 8, 5: 6, 6: 5, 8: 4, 10: 3, 16: 2}

#: Words of a full tile.
TILE_WORDS = 1024


def word_count(size: int, bits: int) -> int:
    """Words that ``size`` elements occupy.

    >>> word_count(4096, 8), word_count(4097, 8), word_count(11, 3)
    (1024, 1025, 2)
    """
    tile = LANES[bits] * TILE_WORDS
    return size // tile * TILE_WORDS + -(-(size % tile) // LANES[bits])


def _tiles(size: int, bits: int) -> list[tuple[int, int, int, int]]:
    """(first element, elements, first word, words) of every tile."""
    tile = LANES[bits] * TILE_WORDS
    starts = range(0, size, tile)
    counts = (min(tile, size - start) for start in starts)
    return [
        (start, count, i * TILE_WORDS, -(-count // LANES[bits]))
        for i, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]


def pack(digits: np.ndarray, bits: int) -> np.ndarray:
    """Digits to words.

    >>> pack(np.array([1, -1, 0, 2, 3], np.int32), 8)   # two words: elements 0, 2, 4 and 1, 3
    array([196609,    511], dtype=int32)
    """
    words = np.zeros(word_count(digits.size, bits), np.uint32)
    for start, count, word, w in _tiles(digits.size, bits):
        for lane in range(-(-count // w)):
            run = digits[start + lane * w : start + min((lane + 1) * w, count)]
            words[word : word + run.size] += run.astype(np.uint32) << np.uint32(bits * lane)
    return words.view(np.int32)


def unpack(words: np.ndarray, bits: int, size: int, limit: int) -> np.ndarray:
    """Summed words to summed digits, each in [−limit, limit].

    >>> unpack(pack(np.array([1, -1, 0, 2, 3], np.int32), 8), 8, 5, 127)
    array([ 1, -1,  0,  2,  3], dtype=int32)
    """
    offset = sum(limit << bits * lane for lane in range(LANES[bits])) & 0xFFFFFFFF
    lifted = words.view(np.uint32) + np.uint32(offset)
    digits = np.empty(size, np.int32)
    for start, count, word, w in _tiles(size, bits):
        for lane in range(-(-count // w)):
            run = digits[start + lane * w : start + min((lane + 1) * w, count)]
            shifted = lifted[word : word + run.size] >> np.uint32(bits * lane)
            run[:] = (shifted & np.uint32(2**bits - 1)).astype(np.int32) - np.int32(limit)
    return digits
