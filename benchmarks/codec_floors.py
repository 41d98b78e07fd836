"""Floors of the CPU kernels: the same reads and writes, and next to no arithmetic."""

import numba
import numpy as np
from numba import prange

CHUNK = 65_536
OPTIONS = {"nogil": True, "parallel": True, "error_model": "numpy", "boundscheck": False}


@numba.njit(**OPTIONS)
def read(x, out):
    """Read everything, once, in four streams."""
    quarter = CHUNK // 4
    for task in prange(0, x.size // CHUNK):
        start = task * CHUNK
        a, b = x[start : start + quarter], x[start + quarter : start + 2 * quarter]
        c = x[start + 2 * quarter : start + 3 * quarter]
        d = x[start + 3 * quarter : start + 4 * quarter]
        total = np.int32(0)
        for j in range(quarter):
            total = np.int32(total + np.int32(np.int32(a[j] ^ b[j]) ^ np.int32(c[j] ^ d[j])))
        out[task] = total


@numba.njit(**OPTIONS)
def encode(x, words, count):
    """Read float32 in the lane layout and write one word for ``count`` of them."""
    tiles = x.size // (count * 1024)
    for tile in prange(0, tiles):
        out = words[tile * 1024 : (tile + 1) * 1024]
        start = tile * count * 1024
        if count % 4:
            out[:] = 0
        for lane in range(0, count // 4 * 4, 4):
            at = start + lane * 1024
            a, b = x[at : at + 1024], x[at + 1024 : at + 2048]
            c, d = x[at + 2048 : at + 3072], x[at + 3072 : at + 4096]
            keep = np.int32(0 if lane == 0 else -1)
            for j in range(1024):
                pair = np.int32(np.int32(a[j]) + np.int32(b[j]))
                other = np.int32(np.int32(c[j]) + np.int32(d[j]))
                out[j] = np.int32(np.int32(out[j] & keep) + np.int32(pair + other))
        for lane in range(count // 4 * 4, count):
            a = x[start + lane * 1024 : start + (lane + 1) * 1024]
            for j in range(1024):
                out[j] = np.int32(out[j] + np.int32(a[j]))


@numba.njit(**OPTIONS)
def decode(words, out, count):
    """Read words and write ``count`` float32 for each, in the lane layout."""
    for tile in prange(0, out.size // (count * 1024)):
        given = words[tile * 1024 : (tile + 1) * 1024]
        for lane in range(count):
            start = (tile * count + lane) * 1024
            a = out[start : start + 1024]
            for j in range(1024):
                a[j] = np.float32(given[j])


@numba.njit(**OPTIONS)
def narrow(x, out):
    """Read float32, write bytes."""
    for task in prange(0, x.size // CHUNK):
        a, b = x[task * CHUNK : (task + 1) * CHUNK], out[task * CHUNK : (task + 1) * CHUNK]
        for j in range(CHUNK):
            b[j] = np.uint8(np.int32(a[j]))


@numba.njit(**OPTIONS)
def widen(codes, out):
    """Read bytes, write float32."""
    for task in prange(0, out.size // CHUNK):
        a, b = codes[task * CHUNK : (task + 1) * CHUNK], out[task * CHUNK : (task + 1) * CHUNK]
        for j in range(CHUNK):
            b[j] = np.float32(a[j])


@numba.njit(**OPTIONS)
def rows(rows, n, out):
    """Read n rows of bytes, one after the other in ``rows``, write one."""
    size = out.size
    for task in prange(0, -(-size // CHUNK)):
        start, stop = task * CHUNK, min(size, (task + 1) * CHUNK)
        o = out[start:stop]
        for row in range(0, n, 4):
            at = row * size
            a, b = rows[at + start : at + stop], rows[at + size + start : at + size + stop]
            at += 2 * size
            c, d = rows[at + start : at + stop], rows[at + size + start : at + size + stop]
            if row == 0:
                for j in range(o.size):
                    o[j] = np.uint8(np.uint8(a[j] ^ b[j]) ^ np.uint8(c[j] ^ d[j]))
            else:
                for j in range(o.size):
                    four = np.uint8(np.uint8(a[j] ^ b[j]) ^ np.uint8(c[j] ^ d[j]))
                    o[j] = np.uint8(o[j] ^ four)
