"""Reductions of exponential codes on the GPU: n packed rows in, one packed row out.

A thread takes a group of eight codes of every row; `reductions` has the arithmetic.
"""

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda

from horovod_gqsgd.cuda_kernels.access import item, put
from horovod_gqsgd.cuda_kernels.draws import ROW
from horovod_gqsgd.cuda_kernels.groups import THREADS, load_group, store_group
from horovod_gqsgd.kernels.scalars import (
    CODE_OF,
    INTEGER_OF,
    f32,
    finalise,
    float_from,
    hash32,
    inline,
    multiply,
    u32,
    u64,
)

__all__ = ["DEPTH", "NODE", "THREADS", "dither", "exact", "pairwise"]
i64 = np.int64

#: Codes that wait in the tree of `pairwise`, a byte each in two registers: enough for 2^15 rows.
DEPTH = 16

#: Words that describe a node of the tree: split, weights of both sides, bits of the scale.
NODE = 4


@functools.cache
def exact(octave: int) -> Callable:
    """The kernel that sums integer levels of n rows and rounds once; see `reductions.exact`."""
    code, integer = CODE_OF[octave], INTEGER_OF[octave]

    @inline
    def level(codes, byte, last):
        return integer(u32(u32(codes >> u32(u32(8) * u32(byte))) & u32(255)), last)

    @inline
    def mean(total, index, k0, k1, scale, last, smallest, share):
        return u32(code(f32(total), scale, hash32(index, k0, k1), last, smallest, share))

    def kernel(rows, packed, keys, n, stride, start, size, bits, scale, last, smallest, share):
        groups = i64(packed.size) // bits
        group = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while group < groups:
            at, codes = i64(8) * group, u64(0)
            row = i64(1) + i64(ROW) * ((start + at) >> i64(32))
            k0, k1 = item(keys, row + i64(4)), item(keys, row + i64(5))
            for half in range(2):
                a, b, c, d = i64(0), i64(0), i64(0), i64(0)
                for i in range(n):
                    loaded = load_group(rows, i * stride + group * bits, bits)
                    four = u32(u64(loaded >> u64(32 * half)) & u64(0xFFFFFFFF))
                    a += level(four, 0, last)
                    b += level(four, 1, last)
                    c += level(four, 2, last)
                    d += level(four, 3, last)
                index = u32(start + at)
                ca = mean(a, index, k0, k1, scale, last, smallest, share)
                cb = mean(b, u32(index + u32(1)), k0, k1, scale, last, smallest, share)
                cc = mean(c, u32(index + u32(2)), k0, k1, scale, last, smallest, share)
                cd = mean(d, u32(index + u32(3)), k0, k1, scale, last, smallest, share)
                low, high = u32(ca | u32(cb << u32(8))), u32(cc | u32(cd << u32(8)))
                four = u32(low | u32(high << u32(16)))
                codes = u64(codes | u64(u64(four) << u64(32 * half)))
                at += i64(4)
            if i64(8) * group + i64(8) > size:  # what is behind the last code must be zero
                codes = u64(codes & u64(u64(1) << u64(i64(8) * (size - i64(8) * group))) - u64(1))
            store_group(packed, group * bits, bits, codes)
            group += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel


@functools.cache
def pairwise(octave: int) -> Callable:
    """The kernel that adds n rows in a tree, in code space; see `reductions.pairwise`.

    ``tree`` holds, for every row, how many nodes end with it, and then the nodes, children first.
    Codes that wait for their other side are on a stack of bytes in two registers.
    """
    code, integer = CODE_OF[octave], INTEGER_OF[octave]

    def kernel(rows, packed, keys, tree, n, stride, start, size, bits, last, smallest, share):
        groups = i64(packed.size) // bits
        group = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while group < groups:
            codes = u64(0)
            row = i64(1) + i64(ROW) * ((start + i64(8) * group) >> i64(32))
            k0, k1 = item(keys, row + i64(4)), item(keys, row + i64(5))
            for j in range(min(i64(8), size - i64(8) * group)):
                word = u32(hash32(u32(start + i64(8) * group + j), k0, k1))
                top, rest, node = u64(0), u64(0), n
                for i in range(n):
                    loaded = load_group(rows, i * stride + group * bits, bits)
                    mine = u64(u64(loaded >> u64(i64(8) * j)) & u64(255))
                    rest = u64(u64(rest << u64(8)) | u64(top >> u64(56)))
                    top = u64(u64(top << u64(8)) | mine)
                    for _ in range(item(tree, i)):
                        right = integer(u32(u64(top & u64(255))), last)
                        left = integer(u32(u64(u64(top >> u64(8)) & u64(255))), last)
                        a, b = i64(item(tree, node + i64(1))), i64(item(tree, node + i64(2)))
                        salt = multiply(u32(item(tree, node)), u32(0x9E3779B9))
                        scale = f32(float_from(item(tree, node + i64(3))))
                        random = finalise(u32(u64(word) + u64(salt) & u64(0xFFFFFFFF)))
                        total = f32(a * left + b * right)
                        new = u64(code(total, scale, random, last, smallest, share))
                        top = u64(u64(top >> u64(8)) | u64(rest << u64(56)))
                        top = u64(u64(top & u64(0xFFFFFFFFFFFFFF00)) | new)
                        rest = u64(rest >> u64(8))
                        node += i64(NODE)
                codes = u64(codes | u64(u64(top & u64(255)) << u64(i64(8) * j)))
            store_group(packed, group * bits, bits, codes)
            group += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel


@functools.cache
def dither() -> Callable:
    """The kernel that writes the reduction's dither from element ``start`` on, for users' own."""

    def kernel(words, keys, start):
        i = i64(cuda.blockIdx.x) * i64(cuda.blockDim.x) + i64(cuda.threadIdx.x)
        while i < i64(words.size):
            row = i64(1) + i64(ROW) * ((start + i) >> i64(32))
            k0, k1 = item(keys, row + i64(4)), item(keys, row + i64(5))
            put(words, i, hash32(u32(start + i), k0, k1))
            i += i64(cuda.gridDim.x) * i64(cuda.blockDim.x)

    return kernel
