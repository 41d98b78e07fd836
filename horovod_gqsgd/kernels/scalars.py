"""The arithmetic of one element, inlined into the CPU and the CUDA kernels: one source of numbers.

Every operation is cast explicitly: Numba widens ``int32 + int32`` to int64, which halves the
vector width. Products go through uint64 and a mask, which compilers turn into one 32-bit multiply
and Python, the CUDA simulator and NumPy compute without overflow. After one float multiplication
everything is integer, so that no compiler can fuse it into something with other bits.
"""

import numba
import numpy as np

u32, u64, i32, f32 = np.uint32, np.uint64, np.int32, np.float32

inline = numba.njit(inline="always")

LOW = u64(0xFFFFFFFF)
MAGNITUDE = u32(0x7FFFFFFF)


@inline
def multiply(a, b):
    """Low half of the product of two uint32."""
    return u32((u64(a) * u64(b)) & LOW)


@inline
def multiply_high(a, b):
    """High half of the product of two uint32."""
    return u32((u64(a) * u64(b)) >> u64(32))


@inline
def finalise(word, key):
    """murmur3's finaliser with a key between its multiplications; see `dither.finalise`."""
    word = u32(word ^ u32(word >> u32(16)))
    word = u32(multiply(word, u32(0x85EBCA6B)) ^ key)
    word = u32(word ^ u32(word >> u32(13)))
    word = multiply(word, u32(0xC2B2AE35))
    return u32(word ^ u32(word >> u32(16)))


@inline
def hash32(index, k0, k1):
    """The word of an element; see `dither.hash32`."""
    return finalise(u32(index ^ k0), k1)


@inline
def stratify(shared, private, place, n, width):
    """Correlated dither of any n; see `dither.Dither.correlated`."""
    stratum = u32(place + multiply_high(shared, n))
    stratum = min(stratum, u32(stratum - n))  # mod n: the difference wraps to a huge number
    return u32(multiply(stratum, width) + multiply_high(private, width))


@inline
def stratify_binary(shared, private, start, mask, shift):
    """`stratify` for n = 2^shift: the same bits without a multiplication."""
    return u32(start + u32(u32(shared & mask) + u32(private >> u32(shift & u32(31)))))


@inline
def linear_scale(norm, limit):
    """``fl(limit/norm)``, or 0 where the norm is 0 or not finite."""
    if norm > f32(0) and norm < f32(np.inf):
        return f32(f32(limit) / norm)
    return f32(0)


@inline
def linear_digit(x, scale, limit, fraction, dither):
    """``floor(x·s/N + u)`` in fixed point; see `linear.encode`."""
    fixed = i32(np.rint(f32(x * scale)))
    fixed = min(max(fixed, i32(-limit)), limit)
    # shift counts are masked, or the shift is carried out in 64 bits
    random = i32(dither >> u32(u32(u32(32) - fraction) & u32(31)))
    return i32(i32(fixed + random) >> i32(fraction & u32(31)))


@inline
def linear_value(total, limit, factor, norm):
    """``fl(total/limit)·factor·norm``; see `linear.decode`."""
    return f32(f32(f32(f32(total) / f32(limit)) * factor) * norm)


@inline
def norm_or_nan(norm):
    """The norm, or NaN for Inf, which makes every element of the block NaN."""
    return norm if norm < f32(np.inf) else f32(np.nan)
