"""Linear levels on the GPU: encode and pack in one pass, unpack and decode in one pass.

A block of 256 threads takes a tile: each thread four adjacent words of it, and from every lane
the four elements that go into them, one vector load (`lanes` has the layout). A lane of a full
tile is a run of 1,024 elements; warps read and write whole lines whatever the width. The tiles
from ``vector_tiles`` on (the last one, all of them where the tensor is not aligned) go word by
word.
"""

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda

from horovod_gqsgd.cuda_kernels.access import item, items4, narrow, put, put4, widen
from horovod_gqsgd.cuda_kernels.draws import DRAWS, keys_of
from horovod_gqsgd.kernels.scalars import (
    f32,
    i32,
    inline,
    linear_digit,
    linear_scale,
    linear_value,
    norm_or_nan,
    u32,
)
from horovod_gqsgd.lanes import TILE_WORDS

RUN = np.int64(TILE_WORDS)
THREADS = TILE_WORDS // 4
i64 = np.int64


@inline
def _shifted_digit(x, scale, limit, fraction, random, shift):
    """A digit at its place in the word; 0 where the norm is 0 or not finite, whatever x is."""
    usable = x if scale > f32(0) else f32(0)
    digit = linear_digit(usable, scale, limit, fraction, random)
    return i32(digit << i32(shift & u32(31)))


@functools.cache
def encode(rounding: str) -> Callable:
    """The kernel that quantises ``x`` against its ``norms`` into ``words``; see `linear.encode`."""
    draw = DRAWS[rounding]

    def kernel(
        x, norms, keys, words, vector_tiles, block_shift, bits, lanes, limit, fraction,
        n, width, shift_n,
    ):  # fmt: skip
        size, count = i64(x.size), i64(words.size)
        thread, place = i64(cuda.threadIdx.x), item(keys, i64(0))
        tile = i64(cuda.blockIdx.x)
        while tile * RUN < count:
            start = tile * RUN * lanes
            if tile < vector_tiles:
                a, b, c, d = i32(0), i32(0), i32(0), i32(0)
                at, shift = start + i64(4) * thread, u32(0)
                high = at >> i64(32)
                k0, k1, k2, k3 = keys_of(keys, high)
                for _ in range(lanes):
                    if at >> i64(32) != high:
                        high = at >> i64(32)
                        k0, k1, k2, k3 = keys_of(keys, high)
                    scale = linear_scale(item(norms, at >> block_shift), limit)
                    xa, xb, xc, xd = items4(x, at)
                    index = u32(at)
                    ua = draw(index, k0, k1, k2, k3, place, n, width, shift_n)
                    ub = draw(u32(index + u32(1)), k0, k1, k2, k3, place, n, width, shift_n)
                    uc = draw(u32(index + u32(2)), k0, k1, k2, k3, place, n, width, shift_n)
                    ud = draw(u32(index + u32(3)), k0, k1, k2, k3, place, n, width, shift_n)
                    a = i32(a + _shifted_digit(widen(xa), scale, limit, fraction, ua, shift))
                    b = i32(b + _shifted_digit(widen(xb), scale, limit, fraction, ub, shift))
                    c = i32(c + _shifted_digit(widen(xc), scale, limit, fraction, uc, shift))
                    d = i32(d + _shifted_digit(widen(xd), scale, limit, fraction, ud, shift))
                    at, shift = at + RUN, u32(shift + bits)
                put4(words, tile * RUN + i64(4) * thread, a, b, c, d)
            else:
                run = min(RUN, count - tile * RUN)
                stop = min(size, start + run * lanes)
                at_word = thread
                while at_word < run:
                    word, at, shift = i32(0), start + at_word, u32(0)
                    while at < stop:
                        k0, k1, k2, k3 = keys_of(keys, at >> i64(32))
                        scale = linear_scale(item(norms, at >> block_shift), limit)
                        random = draw(u32(at), k0, k1, k2, k3, place, n, width, shift_n)
                        value = widen(item(x, at))
                        digit = _shifted_digit(value, scale, limit, fraction, random, shift)
                        word = i32(word + digit)
                        at, shift = at + run, u32(shift + bits)
                    put(words, tile * RUN + at_word, word)
                    at_word += i64(cuda.blockDim.x)
            tile += i64(cuda.gridDim.x)

    return kernel


@inline
def _digit_of(word, offset, shift, mask, limit):
    """The sum of a lane's digits, from a word of sums."""
    lifted = u32(u32(word) + offset)
    return i32(i32(u32(lifted >> u32(shift & u32(31))) & mask) - limit)


@functools.cache
def decode() -> Callable:
    """The kernel that turns summed ``words`` into means times ``factor``; see `linear.decode`."""

    def kernel(
        words, norms, out, vector_tiles, block_shift, bits, lanes, offset, limit, factor
    ):  # fmt: skip
        size, count = i64(out.size), i64(words.size)
        thread, mask = i64(cuda.threadIdx.x), u32((u32(1) << bits) - u32(1))
        tile = i64(cuda.blockIdx.x)
        while tile * RUN < count:
            start = tile * RUN * lanes
            if tile < vector_tiles:
                a, b, c, d = items4(words, tile * RUN + i64(4) * thread)
                at, shift = start + i64(4) * thread, u32(0)
                for _ in range(lanes):
                    norm = norm_or_nan(item(norms, at >> block_shift))
                    qa = _digit_of(a, offset, shift, mask, limit)
                    qb = _digit_of(b, offset, shift, mask, limit)
                    qc = _digit_of(c, offset, shift, mask, limit)
                    qd = _digit_of(d, offset, shift, mask, limit)
                    put4(
                        out, at,
                        narrow(out, linear_value(qa, limit, factor, norm)),
                        narrow(out, linear_value(qb, limit, factor, norm)),
                        narrow(out, linear_value(qc, limit, factor, norm)),
                        narrow(out, linear_value(qd, limit, factor, norm)),
                    )  # fmt: skip
                    at, shift = at + RUN, u32(shift + bits)
            else:
                run = min(RUN, count - tile * RUN)
                stop = min(size, start + run * lanes)
                at_word = thread
                while at_word < run:
                    word = item(words, tile * RUN + at_word)
                    at, shift = start + at_word, u32(0)
                    while at < stop:
                        norm = norm_or_nan(item(norms, at >> block_shift))
                        total = _digit_of(word, offset, shift, mask, limit)
                        put(out, at, narrow(out, linear_value(total, limit, factor, norm)))
                        at, shift = at + run, u32(shift + bits)
                    at_word += i64(cuda.blockDim.x)
            tile += i64(cuda.gridDim.x)

    return kernel
