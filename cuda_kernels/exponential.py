"""Exponential levels on the GPU: a thread takes eight elements, which are one group of codes."""

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda

from horovod_gqsgd.cuda_kernels.access import item, items4, narrow, put, put4, widen
from horovod_gqsgd.cuda_kernels.draws import DRAWS, keys_of
from horovod_gqsgd.cuda_kernels.groups import THREADS, load_group, store_group
from horovod_gqsgd.kernels.scalars import (
    CODE_OF,
    VALUE_OF,
    f32,
    inline,
    norm_or_nan,
    scale_for,
    u32,
    u64,
)

__all__ = ["THREADS", "decode", "encode"]
i64 = np.int64


@functools.cache
def encode(octave: int, rounding: str) -> Callable:
    """The kernel that quantises ``x`` into ``packed`` codes; see `Levels.encode_scaled`."""
    draw, code = DRAWS[rounding], CODE_OF[octave]

    @inline
    def code_of(x, scale, last, smallest, share, index, k0, k1, k2, k3, place, n, width, shift):
        """Code 0 where the norm is 0 or not finite, whatever x is."""
        random = draw(index, k0, k1, k2, k3, place, n, width, shift)
        usable = x if scale > f32(0) else f32(0)
        return u32(code(usable, scale, random, last, smallest, share))

    def kernel(
        x, norms, keys, packed, vector, block_shift, bits, last, smallest, share, n, width, shift
    ):
        size, groups, place = i64(x.size), i64(packed.size) // bits, item(keys, i64(0))
        group = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while group < groups:
            at, codes = i64(8) * group, u64(0)
            k0, k1, k2, k3 = keys_of(keys, at >> i64(32))
            scale = f32(scale_for(item(norms, at >> block_shift)))
            if vector and at + i64(8) <= size:
                for half in range(2):
                    a, b, c, d = items4(x, at)
                    index = u32(at)
                    ca = code_of(widen(a), scale, last, smallest, share, index,
                                 k0, k1, k2, k3, place, n, width, shift)  # fmt: skip
                    cb = code_of(widen(b), scale, last, smallest, share, u32(index + u32(1)),
                                 k0, k1, k2, k3, place, n, width, shift)  # fmt: skip
                    cc = code_of(widen(c), scale, last, smallest, share, u32(index + u32(2)),
                                 k0, k1, k2, k3, place, n, width, shift)  # fmt: skip
                    cd = code_of(widen(d), scale, last, smallest, share, u32(index + u32(3)),
                                 k0, k1, k2, k3, place, n, width, shift)  # fmt: skip
                    low, high = u32(ca | u32(cb << u32(8))), u32(cc | u32(cd << u32(8)))
                    four = u32(low | u32(high << u32(16)))
                    codes = u64(codes | u64(u64(four) << u64(32 * half)))
                    at += i64(4)
            else:
                for i in range(at, min(at + i64(8), size)):
                    one = code_of(widen(item(x, i)), scale, last, smallest, share, u32(i),
                                  k0, k1, k2, k3, place, n, width, shift)  # fmt: skip
                    codes = u64(codes | u64(u64(one) << u64(i64(8) * (i - at))))
            store_group(packed, group * bits, bits, codes)
            group += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel


@functools.cache
def decode(octave: int) -> Callable:
    """The kernel from ``packed`` codes to ``level·factor·norm``; see `exponential.decode`."""
    level = VALUE_OF[octave]

    @inline
    def value_of(codes, byte, last, factor, norm):
        code = np.uint8(u32(codes >> u32(u32(8) * u32(byte))) & u32(255))
        return f32(f32(level(code, last) * factor) * norm)

    def kernel(packed, norms, out, vector, block_shift, bits, last, factor):
        size, groups = i64(out.size), i64(packed.size) // bits
        group = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while group < groups:
            at = i64(8) * group
            codes = load_group(packed, group * bits, bits)
            norm = f32(norm_or_nan(item(norms, at >> block_shift)))
            if vector and at + i64(8) <= size:
                for half in range(2):
                    four = u32(u64(codes >> u64(32 * half)) & u64(0xFFFFFFFF))
                    put4(
                        out, at,
                        narrow(out, value_of(four, 0, last, factor, norm)),
                        narrow(out, value_of(four, 1, last, factor, norm)),
                        narrow(out, value_of(four, 2, last, factor, norm)),
                        narrow(out, value_of(four, 3, last, factor, norm)),
                    )  # fmt: skip
                    at += i64(4)
            else:
                for i in range(at, min(at + i64(8), size)):
                    one = u32(u64(codes >> u64(i64(8) * (i - at))) & u64(255))
                    put(out, i, narrow(out, value_of(one, 0, last, factor, norm)))
            group += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel
