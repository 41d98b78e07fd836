"""Norms of one rank's blocks on the CPU, in one pass."""

import numpy as np
from numba import prange

from horovod_gqsgd.kernels.casts import as_float32, bits_of, view
from horovod_gqsgd.kernels.jit import CHUNK, SERIAL, parallel, serial
from horovod_gqsgd.kernels.scalars import MAGNITUDE, i32
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


@serial
def _max(x):
    # Four streams, compared as integers: a maximum of floats does not vectorise.
    quarter = x.size // 4
    a, b, c, d = x[:quarter], x[quarter : 2 * quarter], x[2 * quarter : 3 * quarter], x[-quarter:]
    ma, mb, mc, md = i32(0), i32(0), i32(0), i32(0)
    for j in range(quarter):
        ma = max(ma, i32(bits_of(as_float32(a[j])) & MAGNITUDE))
        mb = max(mb, i32(bits_of(as_float32(b[j])) & MAGNITUDE))
        mc = max(mc, i32(bits_of(as_float32(c[j])) & MAGNITUDE))
        md = max(md, i32(bits_of(as_float32(d[j])) & MAGNITUDE))
    for j in range(3 * quarter, x.size):
        ma = max(ma, i32(bits_of(as_float32(x[j])) & MAGNITUDE))
    return max(max(ma, mb), max(mc, md))


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
    for i in range(out.size):
        out[i] = _max(x[i * unit : min(x.size, (i + 1) * unit)])


@parallel
def _max_parallel(x, unit, out):
    group = max(1, CHUNK // unit)
    for task in prange(0, -(-out.size // group)):
        for i in range(task * group, min(out.size, (task + 1) * group)):
            out[i] = _max(x[i * unit : min(x.size, (i + 1) * unit)])


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
