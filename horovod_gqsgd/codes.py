"""Codes side by side: numbers of 2 to 8 bits, eight of which fill as many bytes."""

import numpy as np


def packed_size(size: int, bits: int) -> int:
    """Bytes of ``size`` codes: every eight of them fill ``bits`` bytes.

    >>> packed_size(9, 3)
    6
    """
    return -(-size // 8) * bits


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes, one a byte, to a little-endian string of ``bits``-bit numbers.

    >>> pack(np.array([1, 2, 3], np.uint8), 4)
    array([33,  3,  0,  0], dtype=uint8)
    """
    padded = np.pad(codes, (0, -codes.size % 8))
    each = np.unpackbits(padded[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(each, bitorder="little")


def unpack(packed: np.ndarray, bits: int, size: int) -> np.ndarray:
    """The inverse of `pack`.

    >>> unpack(np.array([33, 3, 0, 0], np.uint8), 4, 3)
    array([1, 2, 3], dtype=uint8)
    """
    each = np.unpackbits(packed, bitorder="little").reshape(-1, bits)
    return np.packbits(each, axis=1, bitorder="little")[:size, 0]
