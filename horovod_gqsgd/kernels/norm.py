"""Norms of one rank's blocks on the CPU, in one pass."""

import numpy as np
from numba import prange

from horovod_gqsgd.kernels.casts import as_float32, bits_of, view
from horovod_gqsgd.kernels.jit import CHUNK, SERIAL, parallel, serial
from horovod_gqsgd.kernels.scalars import MAGNITUDE, i32, inline
from horovod_gqsgd.norms import INF, SUM_LANES, SUM_UNIT, blocks, power


def local(x: np.ndarray, q: int | str, p: int | str, block: int | None, out: np.ndarray) -> None:
    """What this rank contributes to the global norms of flat ``x``; see `norms.local`."""
    block = block or max(x.size, 1)
    unit = min(block, SUM_UNIT)
    # Blocks larger than a unit are reduced by units first: one task must not take the whole tensor.
    units, each = -(-x.size // unit), -(-block // unit)
    run = x.size >= SERIAL
    if q == INF:
        partial = out if unit == block and p == INF else np.empty(units, np.int32)
        (_max_parallel if run else _max_serial)(view(x), unit, partial)
        if each > 1:
            partial = np.maximum.reduceat(partial, np.arange(0, units, each))
    else:
        partial = np.empty(units, np.float64)
        (_sum_parallel if run else _sum_serial)(view(x), unit, q == 2, partial)
        if each > 1:
            partial = _in_turn(partial, each, blocks(x.size, block))
    out[:] = power(partial, q, p)


@serial
def _in_turn(partial, each, count):
    sums = np.zeros(count, np.float64)
    for i in range(partial.size):
        sums[i // each] += partial[i]
    return sums


@inline
def _magnitude(value):
    # Compared as integers: a maximum of floats does not vectorise.
    return i32(bits_of(as_float32(value)) & MAGNITUDE)


@serial
def _max1(x):
    top = i32(0)
    for j in range(x.size):
        top = max(top, _magnitude(x[j]))
    return top


@serial
def all_zero(x):
    """Whether there is nothing but zeros, as in rows of a table that no sample looked up.

    Of other gradients the first element tells, as a rule.
    """
    return x.size == 0 or (_magnitude(x[0]) == i32(0) and _max1(x) == i32(0))


@serial
def _max4(a, b, c, d):
    # Four units at once: four streams keep the memory busy.
    ta, tb, tc, td = i32(0), i32(0), i32(0), i32(0)
    for j in range(a.size):
        ta = max(ta, _magnitude(a[j]))
        tb = max(tb, _magnitude(b[j]))
        tc = max(tc, _magnitude(c[j]))
        td = max(td, _magnitude(d[j]))
    return ta, tb, tc, td


@serial
def _max_units(x, unit, out, first, last):
    # Streams that go on from unit to unit, far from one another: memory is read ahead of them.
    quarter = (min(last, x.size // unit) - first) // 4
    size = quarter * unit
    for i in range(first, first + quarter):
        start = i * unit
        stop = start + unit
        a, b = x[start:stop], x[start + size : stop + size]
        c, d = x[start + 2 * size : stop + 2 * size], x[start + 3 * size : stop + 3 * size]
        tops = _max4(a, b, c, d)
        out[i], out[i + quarter], out[i + 2 * quarter], out[i + 3 * quarter] = tops
    for i in range(first + 4 * quarter, last):
        out[i] = _max1(x[i * unit : min(x.size, (i + 1) * unit)])


@serial
def _sum(x, squared, lanes):
    lanes[:] = 0.0
    whole = x.size // SUM_LANES * SUM_LANES
    for start in range(0, whole, SUM_LANES):
        row = x[start : start + SUM_LANES]
        for j in range(SUM_LANES):
            value = np.float64(as_float32(row[j]))
            lanes[j] += value * value if squared else abs(value)
    for j in range(x.size - whole):
        value = np.float64(as_float32(x[whole + j]))
        lanes[j] += value * value if squared else abs(value)
    half = SUM_LANES // 2
    while half > 0:
        for j in range(half):
            lanes[j] += lanes[j + half]
        half //= 2
    return lanes[0]


@serial
def _max_serial(x, unit, out):
    _max_units(x, unit, out, 0, out.size)


@parallel
def _max_parallel(x, unit, out):
    group = max(4, CHUNK // unit)
    for task in prange(0, -(-out.size // group)):
        _max_units(x, unit, out, task * group, min(out.size, (task + 1) * group))


@serial
def _sum_serial(x, unit, squared, out):
    lanes = np.empty(SUM_LANES, np.float64)
    for i in range(out.size):
        out[i] = _sum(x[i * unit : min(x.size, (i + 1) * unit)], squared, lanes)


@parallel
def _sum_parallel(x, unit, squared, out):
    group = max(1, CHUNK // unit)
    for task in prange(0, -(-out.size // group)):
        lanes = np.empty(SUM_LANES, np.float64)
        for i in range(task * group, min(out.size, (task + 1) * group)):
            out[i] = _sum(x[i * unit : min(x.size, (i + 1) * unit)], squared, lanes)
