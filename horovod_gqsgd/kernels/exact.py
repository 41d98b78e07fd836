"""The exact reduction on the CPU: integer levels of n rows summed, then one rounding.

Two ways to the same bits. Where all levels of a stage are powers of two from 2^-20 up, the int64
sum is an int32 sum shifted by twenty bits, and shifts make its terms, eight to a vector. All
other levels come from a table.
"""

import functools

import numpy as np
from numba import prange

from horovod_gqsgd.exponential import UNIT, Levels, scale_for
from horovod_gqsgd.kernels.bases import base_of, code_of
from horovod_gqsgd.kernels.draws import row
from horovod_gqsgd.kernels.jit import CHUNK, parallel, serial
from horovod_gqsgd.kernels.scalars import f32, hash32, i32, inline, u32
from horovod_gqsgd.kernels.stages import STAGE, load, result, stage_end, store

#: Levels 2^0 … 2^-20 are integers of the short sums, of which int32 holds so many.
SHORT = 20
SHORT_LAST = SHORT + 1
SHORT_ROWS = 2**10


@functools.cache
def _table(levels: Levels) -> np.ndarray:
    return levels.decode_integers(np.arange(2**levels.bits, dtype=np.uint8))


def reduce(rows, n, stride, packed, size, start, levels, keys, threads):
    """``packed`` from n flat packed ``rows``, ``stride`` bytes apart."""
    scale = scale_for(np.array([n << UNIT], f32))[0]
    if levels.octave == 1 and n <= SHORT_ROWS:
        run = _short_parallel if threads else _short_serial
    else:
        run = _wide_parallel if threads else _wide_serial
    run(rows, n, stride, packed, size, start, scale, _table(levels), base_of(levels), keys)


@inline
def _short(code, last):
    """``±2^(20 − k)`` of a code with index k + 1; zero, whose k wraps, is shifted out."""
    magnitude = i32(u32(1 << SHORT) >> u32(u32(u32(code & last) - u32(1)) & u32(31)))
    return i32(-magnitude) if code > last else magnitude


@inline
def _short4(a, b, c, d, last):
    left = i32(_short(u32(a), last) + _short(u32(b), last))
    return i32(left + i32(_short(u32(c), last) + _short(u32(d), last)))


@serial
def _short_add(a, b, c, d, sums, last):
    for j in range(sums.size):
        sums[j] = i32(sums[j] + _short4(a[j], b[j], c[j], d[j], last))


@serial
def _short_mean(a, b, c, d, scale, codes, first, key, base):
    """Up to four rows: sum and rounding in one loop, which is what few workers need."""
    k0, k1, _k2, _k3 = key
    last = u32(base.last)
    for j in range(codes.size):
        total = _short4(a[j], b[j], c[j], d[j], last)
        random = hash32(u32(first + u32(j)), k0, k1)
        codes[j] = code_of(base, f32(total), scale, random)


@serial
def _wide_add(a, b, c, d, sums, table):
    for j in range(sums.size):
        sums[j] += (table[a[j]] + table[b[j]]) + (table[c[j]] + table[d[j]])


@serial
def _to_float(sums, floats):
    # A loop of its own: among 32-bit operations the int64 would halve the width of all vectors.
    for j in range(sums.size):
        floats[j] = f32(sums[j])


@serial
def _round(sums, scale, codes, first, key, base):
    k0, k1, _k2, _k3 = key
    for j in range(codes.size):
        random = hash32(u32(first + u32(j)), k0, k1)
        codes[j] = code_of(base, f32(sums[j]), scale, random)


@serial
def _largest_index(codes):
    top = np.uint8(0)
    for j in range(codes.size):
        top = max(top, np.uint8(codes[j] & np.uint8(127)))
    return top


@serial
def _is_short(rows, n, stride, at, end, base):
    if base.last <= SHORT_LAST:
        return True
    if base.bits < 8:
        return False
    for i in range(n):
        if _largest_index(rows[i * stride + at : i * stride + end]) > SHORT_LAST:
            return False
    return True


@serial
def _load4(rows, n, stride, first, at, end, stage, bits):
    """Rows first … first + 3, the missing ones zero, as they are or unpacked into ``stage``."""
    count = end - at
    if bits < 8:
        for i in range(4):
            mine = stage[i * STAGE : (i + 1) * STAGE]
            if first + i < n:
                load(rows[(first + i) * stride :], at, end, mine, bits)
            else:
                mine[:] = 0
    low = first * stride + at
    whole = bits == 8
    zero = stage[4 * STAGE : 4 * STAGE + count]
    a = rows[low : low + count] if whole else stage[:count]
    low += stride
    b = rows[low : low + count] if whole and first + 1 < n else zero
    b = b if whole else stage[STAGE : STAGE + count]
    low += stride
    c = rows[low : low + count] if whole and first + 2 < n else zero
    c = c if whole else stage[2 * STAGE : 2 * STAGE + count]
    low += stride
    d = rows[low : low + count] if whole and first + 3 < n else zero
    d = d if whole else stage[3 * STAGE : 3 * STAGE + count]
    return a, b, c, d


@serial
def _short_range(rows, n, stride, packed, low, high, start, scale, table, base, keys):
    stage, codes = np.zeros(5 * STAGE, np.uint8), np.empty(STAGE, np.uint8)
    short, wide, floats = np.empty(STAGE, i32), np.empty(STAGE, np.int64), np.empty(STAGE, f32)
    short_scale = f32(scale * f32(1 << UNIT - SHORT))
    at = low
    while at < high:
        end = stage_end(at, high, start)
        key, first = row(keys, start + at), u32(start + at)
        mine = result(packed, at, end, codes, base.bits)
        is_short = _is_short(rows, n, stride, at, end, base)
        short[:] = 0
        wide[:] = 0
        for i in range(0, n, 4):
            a, b, c, d = _load4(rows, n, stride, i, at, end, stage, base.bits)
            if not is_short:
                _wide_add(a, b, c, d, wide[: end - at], table)
            elif n > 4:
                _short_add(a, b, c, d, short[: end - at], u32(base.last))
            else:
                _short_mean(a, b, c, d, short_scale, mine, first, key, base)
        if not is_short:
            _to_float(wide, floats)
            _round(floats[: end - at], scale, mine, first, key, base)
        elif n > 4:
            _round(short[: end - at], short_scale, mine, first, key, base)
        store(codes, packed, at, end, base.bits)
        at = end


@serial
def _wide_range(rows, n, stride, packed, low, high, start, scale, table, base, keys):
    stage, codes = np.zeros(5 * STAGE, np.uint8), np.empty(STAGE, np.uint8)
    wide, floats = np.empty(STAGE, np.int64), np.empty(STAGE, f32)
    at = low
    while at < high:
        end = stage_end(at, high, start)
        wide[:] = 0
        for i in range(0, n, 4):
            a, b, c, d = _load4(rows, n, stride, i, at, end, stage, base.bits)
            _wide_add(a, b, c, d, wide[: end - at], table)
        _to_float(wide, floats)
        key, mine = row(keys, start + at), result(packed, at, end, codes, base.bits)
        _round(floats[: end - at], scale, mine, u32(start + at), key, base)
        store(codes, packed, at, end, base.bits)
        at = end


@serial
def _short_serial(rows, n, stride, packed, size, start, scale, table, base, keys):
    _short_range(rows, n, stride, packed, 0, size, start, scale, table, base, keys)


@parallel
def _short_parallel(rows, n, stride, packed, size, start, scale, table, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        low, high = task * CHUNK, min(size, (task + 1) * CHUNK)
        _short_range(rows, n, stride, packed, low, high, start, scale, table, base, keys)


@serial
def _wide_serial(rows, n, stride, packed, size, start, scale, table, base, keys):
    _wide_range(rows, n, stride, packed, 0, size, start, scale, table, base, keys)


@parallel
def _wide_parallel(rows, n, stride, packed, size, start, scale, table, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        low, high = task * CHUNK, min(size, (task + 1) * CHUNK)
        _wide_range(rows, n, stride, packed, low, high, start, scale, table, base, keys)
