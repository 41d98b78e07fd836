"""The exact reduction on the CPU: integer levels of n rows summed, then one rounding.

Two ways to the same bits. Where all levels of a stage are powers of two from 2^-20 up, the int64
sum is an int32 sum shifted by twenty bits, which takes half the vectors.
"""

import numpy as np
from numba import prange

from horovod_gqsgd.exponential import UNIT, scale_for
from horovod_gqsgd.kernels.bases import base_of, code_of
from horovod_gqsgd.kernels.draws import row
from horovod_gqsgd.kernels.jit import CHUNK, parallel, serial, wide
from horovod_gqsgd.kernels.level_sums import GROUP, WIDTH, group_sums, level_sums
from horovod_gqsgd.kernels.scalars import f32, hash32, i32, inline, u32
from horovod_gqsgd.kernels.stages import STAGE, load, result, stage_end, store

#: Levels 2^0 … 2^-20 are integers of the short sums, of which int32 holds so many.
SHORT = 20
SHORT_LAST = SHORT + 1
SHORT_ROWS = 2**10


def reduce(rows, n, stride, packed, size, start, levels, keys, threads):
    """``packed`` from n flat packed ``rows``, ``stride`` bytes apart."""
    scale = scale_for(np.array([n << UNIT], f32))[0]
    few = levels.count <= SHORT_LAST or levels.bits == 8  # which are looked at, stage by stage
    if levels.octave == 1 and few and n <= SHORT_ROWS:
        run = _short_parallel if threads else _short_serial
    else:
        run = _wide_parallel if threads else _wide_serial
    run(rows, n, stride, packed, size, start, scale, base_of(levels), keys)


@inline
def _short(code):
    """``±2^(20 − k)`` of an 8-bit code with index k + 1; zero, whose k wraps, is shifted out."""
    signed = i32(np.int8(code))
    top = i32(i32(signed & i32(-2 << SHORT)) + i32(1 << SHORT))
    return i32(top >> i32(i32(signed - i32(1)) & i32(31)))


@inline
def _short4(a, b, c, d):
    return i32(i32(_short(a) + _short(b)) + i32(_short(c) + _short(d)))


@inline
def _largest(a, b, c, d):
    """The largest index among four 8-bit codes."""
    last = np.uint8(127)
    left = max(np.uint8(a & last), np.uint8(b & last))
    return max(left, max(np.uint8(c & last), np.uint8(d & last)))


@serial
def _short_add(a, b, c, d, sums):
    """Returns the largest index, up to which the sums are right: to look first costs more."""
    top = np.uint8(0)
    for j in range(sums.size):
        top = max(top, _largest(a[j], b[j], c[j], d[j]))
        sums[j] = i32(sums[j] + _short4(a[j], b[j], c[j], d[j]))
    return top


@serial
def _short_mean(a, b, c, d, scale, codes, first, key, base):
    """Up to four rows: sum and rounding in one loop, which is what few workers need."""
    wide()
    k0, k1, _k2, _k3 = key
    top = np.uint8(0)
    for j in range(codes.size):
        top = max(top, _largest(a[j], b[j], c[j], d[j]))
        total = _short4(a[j], b[j], c[j], d[j])
        random = hash32(u32(first + u32(j)), k0, k1)
        codes[j] = code_of(base, f32(total), scale, random)
    return top


@serial
def _add(a, b, c, d, sums, base):
    """Integer levels of four rows: added to float64 ``sums``, or float32 ones set to them."""
    whole = a.size & -WIDTH
    for j in range(0, whole, WIDTH):
        level_sums(a, b, c, d, j, sums, base)
    for j in range(whole, a.size, GROUP):
        group_sums(a, b, c, d, j, sums, base)


@serial
def _to_float(sums, floats):
    # A loop of its own: among 32-bit operations float64 would halve the width of all vectors.
    for j in range(sums.size):
        floats[j] = f32(sums[j])


@serial
def _round(sums, scale, codes, first, key, base):
    wide()
    k0, k1, _k2, _k3 = key
    for j in range(codes.size):
        random = hash32(u32(first + u32(j)), k0, k1)
        codes[j] = code_of(base, f32(sums[j]), scale, random)


@serial
def _row(rows, n, stride, i, at, end, stage, bits):
    """The codes at … end − 1 of a row, or zeros where there is no such row."""
    if i < n:
        return load(rows[i * stride :], at, end, stage, bits)
    stage[:] = 0
    return stage[: end - at]


@serial
def _sum(rows, n, stride, at, end, stage, sums, floats, base):
    """Float32 sums of integer levels, by way of float64 if there are more than four rows."""
    if n > 4:
        sums[:] = 0
    for i in range(0, n, 4):
        a = _row(rows, n, stride, i, at, end, stage[0], base.bits)
        b = _row(rows, n, stride, i + 1, at, end, stage[1], base.bits)
        c = _row(rows, n, stride, i + 2, at, end, stage[2], base.bits)
        d = _row(rows, n, stride, i + 3, at, end, stage[3], base.bits)
        if n <= 4:
            _add(a, b, c, d, floats, base)
        else:
            _add(a, b, c, d, sums, base)
    if n > 4:
        _to_float(sums, floats)


@serial
def _short_row(rows, n, stride, i, at, end, stage, bits):
    """As `_row`, with the sign where it is in codes of 8 bits."""
    codes = _row(rows, n, stride, i, at, end, stage, bits)
    if bits < 8 and i < n:
        last = np.uint8((1 << bits - 1) - 1)
        for j in range(end - at):  # which are in the stage
            sign = np.uint8(128) if stage[j] > last else np.uint8(0)
            stage[j] = np.uint8(np.uint8(stage[j] & last) | sign)
    return codes


@serial
def _short_range(rows, n, stride, packed, low, high, start, scale, base, keys):
    stage, codes, bits = np.empty((4, STAGE), np.uint8), np.empty(STAGE, np.uint8), base.bits
    short, sums, floats = np.empty(STAGE, i32), np.empty(STAGE), np.empty(STAGE, f32)
    short_scale = f32(scale * f32(1 << UNIT - SHORT))
    at = low
    while at < high:
        end = stage_end(at, high, start)
        key, first = row(keys, start + at), u32(start + at)
        mine = result(packed, at, end, codes, bits)
        top = np.uint8(0)
        if n > 4:
            short[:] = 0
        for i in range(0, n, 4):
            a = _short_row(rows, n, stride, i, at, end, stage[0], bits)
            b = _short_row(rows, n, stride, i + 1, at, end, stage[1], bits)
            c = _short_row(rows, n, stride, i + 2, at, end, stage[2], bits)
            d = _short_row(rows, n, stride, i + 3, at, end, stage[3], bits)
            if n <= 4:
                top = _short_mean(a, b, c, d, short_scale, mine, first, key, base)
            else:
                top = max(top, _short_add(a, b, c, d, short[: end - at]))
        if top > SHORT_LAST:
            _sum(rows, n, stride, at, end, stage, sums, floats, base)
            _round(floats, scale, mine, first, key, base)
        elif n > 4:
            _round(short, short_scale, mine, first, key, base)
        store(codes, packed, at, end, bits)
        at = end


@serial
def _wide_range(rows, n, stride, packed, low, high, start, scale, base, keys):
    stage, codes = np.empty((4, STAGE), np.uint8), np.empty(STAGE, np.uint8)
    sums, floats = np.empty(STAGE), np.empty(STAGE, f32)
    at = low
    while at < high:
        end = stage_end(at, high, start)
        _sum(rows, n, stride, at, end, stage, sums, floats, base)
        key, mine = row(keys, start + at), result(packed, at, end, codes, base.bits)
        _round(floats, scale, mine, u32(start + at), key, base)
        store(codes, packed, at, end, base.bits)
        at = end


@serial
def _short_serial(rows, n, stride, packed, size, start, scale, base, keys):
    _short_range(rows, n, stride, packed, 0, size, start, scale, base, keys)


@parallel
def _short_parallel(rows, n, stride, packed, size, start, scale, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        low, high = task * CHUNK, min(size, (task + 1) * CHUNK)
        _short_range(rows, n, stride, packed, low, high, start, scale, base, keys)


@serial
def _wide_serial(rows, n, stride, packed, size, start, scale, base, keys):
    _wide_range(rows, n, stride, packed, 0, size, start, scale, base, keys)


@parallel
def _wide_parallel(rows, n, stride, packed, size, start, scale, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        low, high = task * CHUNK, min(size, (task + 1) * CHUNK)
        _wide_range(rows, n, stride, packed, low, high, start, scale, base, keys)
