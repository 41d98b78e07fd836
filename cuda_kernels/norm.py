"""Norms of one rank's blocks on the GPU: maxima by integer bits, sums in float64.

Maxima: 256 threads take 4,096 elements, 16 each in four vector loads from one norm block, halve
them in shared memory down to one per norm block, and join that with ``atomicMax``, which for int32
is one instruction. The halving costs as much for 16 elements of a thread as for four.

Sums: float64 and their order are part of the scheme (`norms` has it), so that every machine gets
the same bits: a warp takes a unit, thread j its lane j, and the lanes are added in halves. What
the units give is added in turn by `contribution`, one thread a norm block.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import cuda, float64, int32

from horovod_gqsgd.cuda_kernels.access import device, item, items4, put, widen
from horovod_gqsgd.kernels.casts import bits_of
from horovod_gqsgd.kernels.scalars import MAGNITUDE, f32, float_from, i32, inline
from horovod_gqsgd.norms import INF, SUM_LANES

THREADS = 256
f64, i64 = np.float64, np.int64

#: Vectors of four that a thread takes for a maximum, and elements.
VECTORS = 4
EACH = 4 * VECTORS
EACH_BITS = i64(EACH.bit_length() - 1)

#: Elements that a block of threads takes at a time.
CHUNK = i64(EACH * THREADS)
UNITS = i64(THREADS // SUM_LANES)


@inline
def magnitude(x):
    """The bits of |x|, which are ordered like |x|."""
    return i32(bits_of(x) & MAGNITUDE)


@functools.cache
def maximum() -> Callable:
    """The kernel that joins the bits of max|x| of every block into ``out``, which holds zeros."""

    def kernel(x, out, vector, block_shift):
        tops = cuda.shared.array(THREADS, int32)
        size, thread = i64(x.size), i32(cuda.threadIdx.x)
        segment = i32(min(i64(THREADS), i64(1) << min(block_shift - EACH_BITS, i64(30))))
        place = i32(thread & i32(segment - i32(1)))  # among the threads with the same norm
        step = i64(4) * i64(segment)  # neighbours read neighbouring vectors
        first = i64(EACH) * i64(thread - place) + i64(4) * i64(place)
        chunk = i64(cuda.blockIdx.x)
        while chunk * CHUNK < size:
            at, top = chunk * CHUNK + first, i32(0)
            if vector and at + i64(VECTORS - 1) * step + i64(4) <= size:
                for i in range(VECTORS):
                    a, b, c, d = items4(x, at + i64(i) * step)
                    four = max(max(magnitude(widen(a)), magnitude(widen(b))),
                               max(magnitude(widen(c)), magnitude(widen(d))))  # fmt: skip
                    top = max(top, four)
            else:
                for i in range(VECTORS):
                    start = at + i64(i) * step
                    for j in range(start, min(start + i64(4), size)):
                        top = max(top, magnitude(widen(item(x, j))))
            tops[thread] = top
            cuda.syncthreads()
            half = i32(segment >> i32(1))
            while half > i32(0):
                if place < half:
                    tops[thread] = max(tops[thread], tops[thread + half])
                cuda.syncthreads()
                half = i32(half >> i32(1))
            if place == i32(0) and at < size:
                cuda.atomic.max(out, at >> block_shift, tops[thread])
            chunk += i64(cuda.gridDim.x)

    return kernel


@functools.cache
def total(q: int | str) -> Callable:
    """The kernel that sums |x|^q over units of 2^``unit_shift`` elements into ``partial``."""
    squared = q == 2

    def kernel(x, partial, unit_shift):
        lanes = cuda.shared.array(THREADS, float64)
        size, units, thread = i64(x.size), i64(partial.size), i32(cuda.threadIdx.x)
        lane = i32(thread & i32(SUM_LANES - 1))
        first = i64(cuda.blockIdx.x) * UNITS
        while first < units:
            unit = first + i64(thread // i32(SUM_LANES))
            at = (unit << unit_shift) + i64(lane)
            stop = min(size, (unit + i64(1)) << unit_shift)
            mine = f64(0)
            while at < stop:
                value = f64(widen(item(x, at)))
                mine += value * value if squared else abs(value)
                at += i64(SUM_LANES)
            lanes[thread] = mine
            cuda.syncthreads()
            half = i32(SUM_LANES // 2)
            while half > i32(0):
                if lane < half:
                    lanes[thread] += lanes[thread + half]
                cuda.syncthreads()
                half = i32(half >> i32(1))
            if lane == i32(0) and unit < units:
                put(partial, unit, lanes[thread])
            first += UNITS * i64(cuda.gridDim.x)

    return kernel


@device
def _in_turn(partial, start, stop):
    """The sum of the units of a block, one after the other."""
    mine = f64(0)
    for i in range(start, stop):
        mine += item(partial, i)
    return mine


@functools.cache
def contribution(q: int | str, p: int | str) -> Callable:
    """The kernel from maxima (q = ∞) or sums of units to what the ranks exchange: `norms.power`.

    ``each`` units belong to a norm block.
    """
    by_max, to_max, root, square = q == INF, p == INF, q == 2 and p != 2, p == 2 and q != 2

    def kernel(reduced, out, each):
        i = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while i < i64(out.size):
            if by_max:
                norm = f64(float_from(item(reduced, i)))
            else:
                norm = _in_turn(reduced, i * each, min((i + i64(1)) * each, i64(reduced.size)))
            if root:
                norm = f64(math.sqrt(norm))
            if square:
                norm = norm * norm
            put(out, i, magnitude(f32(norm)) if to_max else norm)
            i += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel
