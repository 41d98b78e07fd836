"""The exact reduction on the CPU: integer levels of n rows summed, then one rounding.

Two ways to the same bits. Where all levels of a stage are powers of two from 2^-20 up, the int64
sum is an int32 sum shifted by twenty bits, which takes half the vectors.
"""

import numpy as np
from numba import prange

from horovod_gqsgd.codecs.exponential import SHIFT, UNIT, scale_for
from horovod_gqsgd.kernels.bases import base_of, code_of_high, code_of_sum
from horovod_gqsgd.kernels.draws import row
from horovod_gqsgd.kernels.jit import CHUNK, parallel, serial, wide
from horovod_gqsgd.kernels.level_sums import (
    MOST_ROWS,
    SHORT,
    SHORT_LAST,
    SHORT_ROWS,
    level_sums,
)
from horovod_gqsgd.kernels.scalars import f32, fold, i32, mix, u32
from horovod_gqsgd.kernels.stages import STAGE, blank, load, result, silence, stage_end, store

#: Float bits of 2^24 times the smallest mean: a unit, of as many rows as there may be.
LEAST_SUM = f32(2.0 ** (SHIFT - UNIT) / MOST_ROWS).view(u32)


def reduce(rows, n, stride, packed, size, start, levels, keys, threads):
    """``packed`` from n flat packed ``rows``, ``stride`` bytes apart."""
    scale = scale_for(np.array([n << UNIT], f32))[0]
    few = levels.count <= SHORT_LAST or levels.bits == 8  # which are looked at, stage by stage
    if levels.octave == 1 and few and n <= SHORT_ROWS:
        run = _short_parallel if threads else _short_serial
    else:
        run = _wide_parallel if threads else _wide_serial
    run(rows, n, stride, packed, size, start, scale, base_of(levels), keys)


@serial
def _to_float(sums, floats):
    # A loop of its own: among 32-bit operations float64 would halve the width of all vectors.
    for j in range(sums.size):
        floats[j] = f32(sums[j])


@serial
def _round(sums, scale, codes, first, key, base):
    wide()
    k0, k1, _k2, _k3 = key
    low = u32(first % STAGE)  # all of an index that differs in a stage: `fold` would not change it
    k0 = u32(k0 ^ fold(u32(u32(first) - low)))
    if base.smallest <= LEAST_SUM:
        for j in range(codes.size):
            codes[j] = code_of_high(base, sums[j], scale, mix(u32(low ^ k0), k1))
            low = u32(low + u32(1))
    else:
        for j in range(codes.size):
            codes[j] = code_of_sum(base, sums[j], scale, mix(u32(low ^ k0), k1))
            low = u32(low + u32(1))


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
    for i in range(0, n, 4):
        a = _row(rows, n, stride, i, at, end, stage[0], base.bits)
        b = _row(rows, n, stride, i + 1, at, end, stage[1], base.bits)
        c = _row(rows, n, stride, i + 2, at, end, stage[2], base.bits)
        d = _row(rows, n, stride, i + 3, at, end, stage[3], base.bits)
        if n <= 4:
            level_sums(a, b, c, d, None, floats, base)
        elif i == 0:
            level_sums(a, b, c, d, None, sums, base)
        else:
            level_sums(a, b, c, d, sums, sums, base)
    if n > 4:
        _to_float(sums, floats)


@serial
def _short_range(rows, n, stride, packed, low, high, start, scale, base, keys):
    stage, codes, bits = np.empty((4, STAGE), np.uint8), np.empty(STAGE, np.uint8), base.bits
    short, sums, floats = np.empty(STAGE, i32), np.empty(STAGE), np.empty(STAGE, f32)
    short_scale = f32(scale * f32(1 << UNIT - SHORT))
    at = low
    while at < high:
        silent, end = silence(rows, n, stride, at, stage_end(at, high, start), base.bits)
        if silent:
            blank(packed, at, end, base.bits)
            at = end
            continue
        key, first = row(keys, start + at), start + at
        mine = result(packed, at, end, codes, bits)
        top = np.uint8(0)
        for i in range(0, n, 4):
            a = _row(rows, n, stride, i, at, end, stage[0], bits)
            b = _row(rows, n, stride, i + 1, at, end, stage[1], bits)
            c = _row(rows, n, stride, i + 2, at, end, stage[2], bits)
            d = _row(rows, n, stride, i + 3, at, end, stage[3], bits)
            if i == 0:
                top = level_sums(a, b, c, d, None, short, base)
            else:
                top = max(top, level_sums(a, b, c, d, short, short, base))
        if top > SHORT_LAST:
            _sum(rows, n, stride, at, end, stage, sums, floats, base)
            _round(floats, scale, mine, first, key, base)
        else:
            _round(short, short_scale, mine, first, key, base)
        store(codes, packed, at, end, bits)
        at = end


@serial
def _wide_range(rows, n, stride, packed, low, high, start, scale, base, keys):
    stage, codes = np.empty((4, STAGE), np.uint8), np.empty(STAGE, np.uint8)
    sums, floats = np.empty(STAGE), np.empty(STAGE, f32)
    at = low
    while at < high:
        silent, end = silence(rows, n, stride, at, stage_end(at, high, start), base.bits)
        if silent:
            blank(packed, at, end, base.bits)
            at = end
            continue
        _sum(rows, n, stride, at, end, stage, sums, floats, base)
        key, mine = row(keys, start + at), result(packed, at, end, codes, base.bits)
        _round(floats, scale, mine, start + at, key, base)
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
