"""Packed exponential codes, a group of eight at a time: eight codes fill exactly ``bits`` bytes.

With 8 bits a group is one load or store of eight bytes; other widths go byte by byte, which the
first cache puts together again.
"""

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda

from horovod_gqsgd.cuda_kernels.access import device, eight, item, put, put_eight
from horovod_gqsgd.kernels.scalars import spread, squeeze, u32, u64

THREADS = 256
i64 = np.int64


@device
def load_group(packed, at, bits):
    """Eight codes, one a byte, from the ``bits`` bytes at ``at``."""
    if bits == i64(8):
        return eight(packed, at)
    word = u64(0)
    for byte in range(bits):
        word = u64(word | u64(u64(item(packed, at + byte)) << u64(i64(8) * byte)))
    return u64(spread(word, u64(bits)))


@device
def store_group(packed, at, bits, codes):
    """The inverse of `load_group`."""
    if bits == i64(8):
        put_eight(packed, at, codes)
    else:
        word = u64(squeeze(codes, u64(bits)))
        for byte in range(bits):
            put(packed, at + byte, np.uint8(u64(word >> u64(i64(8) * byte)) & u64(255)))


@functools.cache
def unpack() -> Callable:
    """The kernel from ``packed`` codes to one a byte."""

    def kernel(packed, codes, bits):
        group = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while i64(8) * group < i64(codes.size):
            eight_codes = load_group(packed, group * bits, bits)
            for i in range(i64(8) * group, min(i64(8) * group + i64(8), i64(codes.size))):
                put(codes, i, np.uint8(u64(eight_codes & u64(255))))
                eight_codes = u64(eight_codes >> u64(8))
            group += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel


@functools.cache
def pack() -> Callable:
    """The kernel from codes, one a byte, to ``packed``, with zeros up to a whole group."""

    def kernel(codes, packed, bits):
        group = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while i64(8) * group < i64(codes.size):
            eight_codes, shift = u64(0), u32(0)
            for i in range(i64(8) * group, min(i64(8) * group + i64(8), i64(codes.size))):
                eight_codes = u64(eight_codes | u64(u64(item(codes, i)) << u64(shift)))
                shift = u32(shift + u32(8))
            store_group(packed, group * bits, bits, eight_codes)
            group += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel
