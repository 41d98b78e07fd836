"""Before and after the exchange of norms: the header, the float32 norms, the keys of the dither.

Kernels read the step from the header on the device: nobody waits for it to reach the host.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from numba import cuda

from horovod_gqsgd.cuda_kernels.access import item, put
from horovod_gqsgd.cuda_kernels.draws import ROW
from horovod_gqsgd.dither import REDUCTION, SHARED
from horovod_gqsgd.kernels.scalars import f32, float_from, folded, i32, philox4x32, place, u32
from horovod_gqsgd.norms import INF, SMALLEST

THREADS = 256
i64 = np.int64


@functools.cache
def header() -> Callable:
    """The kernel that begins a norm vector: header, roll (if ``roll``), and zeros for maxima."""

    def kernel(head, fingerprint, complement, step, roll):
        i = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while i < i64(head.size):
            value = i32(i == roll)
            if i == i64(0):
                value = fingerprint
            elif i == i64(1):
                value = complement
            elif i == i64(2):
                value = step
            put(head, i, value)
            i += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel


@functools.cache
def prepare(p: int | str) -> Callable:
    """The kernel from the exchanged vector to ``norms`` (`norms.joined`) and ``keys`` (`draws`)."""
    by_max, root = p == INF, p == 2

    def kernel(reduced, head, norms, keys, seed, name_low, name_high, rank, n):
        i = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        highs = (i64(keys.size) - i64(1)) // i64(ROW)
        if i < highs:
            step, high, row = u32(item(head, i64(2))), u32(i), i64(1) + i64(ROW) * i
            k0, k1, _k2, _k3 = philox4x32(seed, step, rank, high, name_low, name_high)
            s0, s1, s2, s3 = philox4x32(seed, step, u32(SHARED), high, name_low, name_high)
            r0, r1, _r2, _r3 = philox4x32(seed, step, u32(REDUCTION), high, name_low, name_high)
            (k0, k1), (s0, s1), (r0, r1) = folded(k0, k1), folded(s0, s1), folded(r0, r1)
            put(keys, row, k0)
            put(keys, row + 1, k1)
            put(keys, row + 2, s0)
            put(keys, row + 3, s1)
            put(keys, row + 4, r0)
            put(keys, row + 5, r1)
            if i == i64(0):
                put(keys, i64(0), place(rank, n, s2, s3))
        while i < i64(norms.size):
            if by_max:
                norm = f32(float_from(item(reduced, i)))
            else:
                norm = f32(math.sqrt(item(reduced, i)) if root else item(reduced, i))
            put(norms, i, f32(0) if norm < SMALLEST else norm)
            i += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel
