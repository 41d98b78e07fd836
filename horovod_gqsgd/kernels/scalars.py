"""The arithmetic of one element, inlined into the CPU and the CUDA kernels: one source of numbers.

Every operation is cast explicitly: Numba widens ``int32 + int32`` to int64, which halves the
vector width. Products go through uint64 and a mask, which compilers turn into one 32-bit multiply
and Python, the CUDA simulator and NumPy compute without overflow. After one float multiplication
everything is integer, so that no compiler can fuse it into something with other bits.
"""

import math

import numba
import numpy as np

from horovod_gqsgd.kernels.casts import bits_of, float_of, nearest

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
def fold(word):
    """The upper half of a word xored into the lower: of ``a ^ b`` that is ``fold(a) ^ fold(b)``."""
    return u32(word ^ u32(word >> u32(16)))


@inline
def folded(k0, k1):
    """Keys as `hash32` takes them, which leaves the loops over elements less to do."""
    return fold(k0), u32(k1 ^ u32(k1 >> u32(13)))


@inline
def mix(word, key):
    """The rest of `hash32`."""
    word = multiply(word, u32(0x85EBCA6B))
    word = multiply(u32(u32(word ^ u32(word >> u32(13))) ^ key), u32(0xC2B2AE35))
    return fold(word)


@inline
def hash32(index, k0, k1):
    """The word of an element, its keys `folded`; see `dither.hash32`."""
    return mix(u32(fold(index) ^ k0), k1)


@inline
def finalise(word):
    """murmur3's finaliser; see `dither.finalise`."""
    return mix(fold(word), u32(0))


@inline
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10; see `dither.philox4x32`."""
    for _ in range(10):
        high0, low0 = multiply_high(u32(0xD2511F53), c0), multiply(u32(0xD2511F53), c0)
        high1, low1 = multiply_high(u32(0xCD9E8D57), c2), multiply(u32(0xCD9E8D57), c2)
        c0, c1, c2, c3 = u32(u32(high1 ^ c1) ^ k0), low1, u32(u32(high0 ^ c3) ^ k1), low0
        k0 = u32((u64(k0) + u64(0x9E3779B9)) & LOW)
        k1 = u32((u64(k1) + u64(0xBB67AE85)) & LOW)
    return c0, c1, c2, c3


@inline
def place(rank, n, k2, k3):
    """π(rank); see `dither.place`."""
    k2, k3 = folded(k2, k3)
    mine, smaller = hash32(rank, k2, k3), u32(0)
    for other in range(n):
        smaller = u32(smaller + u32(hash32(u32(other), k2, k3) < mine))
    return smaller


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
    fixed = nearest(f32(x * scale))
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


SHIFT = 24
ONE_BITS = u32((127 + SHIFT) << 23)
LOW_BITS = 24


def _threshold(octave, step):
    return u32(round((2 ** (step / octave) - 1) * 2**23))


ROOT1, ROOT2, ROOT3 = (_threshold(4, step) for step in (1, 2, 3))  # 2^(1/4), 2^(2/4), 2^(3/4)
GAP0, GAP1, GAP2 = ROOT1, ROOT2 - ROOT1, ROOT3 - ROOT2


@inline
def exponential_scale(norm):
    """``fl(2^24/norm)``, up if the norm would fall short of 2^24; see `exponential.scale_for`.

    The increment is returned apart, because it is one of the bits.
    """
    if norm > f32(0) and norm < f32(np.inf):
        scale = f32(f32(2**SHIFT) / norm)
        return scale, u32(f32(norm * scale) < f32(2**SHIFT))
    return f32(0), u32(0)


@inline
def between1(scaled, dither):
    """Index of the level around ``scaled``, base 2: add random mantissa bits, keep the exponent."""
    return i32(i32(128 + SHIFT) - i32(u32(scaled + u32(dither >> u32(9))) >> u32(23)))


@inline
def mask(condition):
    """All ones or none: selections without branches, which would keep a loop from vectorising."""
    return u32(i32(0) - i32(condition))


def _gaps(lowest, *ends):
    """For each gap between levels of an octave, what `_carry` takes; all but the first as steps.

    Its width over 2^23, as float bits, and what lifts its end to a multiple of 2^23: the number
    of its place in the octave, the lowest exponent taken off.
    """
    bounds, octave = [0, *map(int, ends), 2**23], len(ends) + 1
    widths = np.diff(bounds).astype(f32) / f32(2**23)
    lifts = [(place + 1 - lowest * octave) * 2**23 - end for place, end in enumerate(bounds[1:])]
    pairs = np.array([widths.view(u32), np.array(lifts).astype(u32)])
    return [u32(value) for value in np.diff(pairs, axis=1, prepend=u32(0)).T.ravel()]


ONE = 127 + SHIFT  # the exponent of the level 1
LOWEST = ONE - 32  # and of the smallest of base ⁴√2: four times the whole one overflows
WIDTH, LIFT, WIDTH2, LIFT2 = _gaps(0, ROOT2)
WIDTH4, LIFT4, WIDTH41, LIFT41, WIDTH42, LIFT42, WIDTH43, LIFT43 = _gaps(
    LOWEST, ROOT1, ROOT2, ROOT3
)


@inline
def _carry(exponent, mantissa, width, lift, dither):
    """The exponent, in levels, and one more if mantissa and dither fill the gap."""
    random = u32(i32(f32(f32(i32(dither >> u32(9))) * float_of(width))))
    return i32(u32(u32(u32(exponent + mantissa) + lift) + random) >> u32(23))


@inline
def between2(scaled, dither):
    """The same for base √2: two levels in an octave."""
    mantissa = u32(scaled & u32(0x7FFFFF))
    upper = u32(mantissa >= ROOT2)
    width, lift = u32(WIDTH + u32(upper * WIDTH2)), u32(LIFT + u32(upper * LIFT2))
    exponent = u32(u32(scaled >> u32(23)) << u32(24))
    return i32(i32(1 + 2 * ONE) - _carry(exponent, mantissa, width, lift, dither))


@inline
def between4(scaled, dither):
    """The same for base ⁴√2: four levels in an octave."""
    mantissa = u32(scaled & u32(0x7FFFFF))
    c1, c2, c3 = u32(mantissa >= ROOT1), u32(mantissa >= ROOT2), u32(mantissa >= ROOT3)
    width = u32(u32(u32(WIDTH4 + u32(c1 * WIDTH41)) + u32(c2 * WIDTH42)) + u32(c3 * WIDTH43))
    lift = u32(u32(u32(LIFT4 + u32(c1 * LIFT41)) + u32(c2 * LIFT42)) + u32(c3 * LIFT43))
    exponent = u32(u32(scaled >> u32(23)) << u32(25))
    return i32(i32(1 + 4 * (ONE - LOWEST)) - _carry(exponent, mantissa, width, lift, dither))


@inline
def below(product, share_scale, dither):
    """Whether what lies below the smallest level becomes 0; never true of what lies above it."""
    random = f32(i32(u32(~dither) >> u32(32 - LOW_BITS)))
    return f32(product * share_scale) <= random


@inline
def level_bits1(index):
    """Float bits of the level with an index from 1 up, base 2."""
    return u32(u32(i32(128) - index) << u32(23))


@inline
def level_bits2(index):
    """The same for base √2."""
    down = i32(i32(1) - index)
    mantissa = u32(ROOT2 & mask(i32(down & i32(1)) == i32(1)))
    return u32(u32(u32(i32(127) + i32(down >> i32(1))) << u32(23)) + mantissa)


@inline
def level_bits4(index):
    """The same for base ⁴√2."""
    down = i32(i32(1) - index)
    step = i32(down & i32(3))
    mantissa = u32(
        u32(u32(GAP0 & mask(step > i32(0))) + u32(GAP1 & mask(step > i32(1))))
        + u32(GAP2 & mask(step > i32(2)))
    )
    return u32(u32(u32(i32(127) + i32(down >> i32(2))) << u32(23)) + mantissa)


@inline
def nothing(product, share_scale, dither):
    """`below` where all but 0 lies above the smallest level."""
    return product == f32(0)


def _code_function(between, least, below):
    """``least``: the float bits below which a number counts as 0."""

    @inline
    def code_of(x, scale, dither, last, smallest, share_scale):
        """The code of ``x·scale/2^24``; see `exponential.Levels.encode_scaled`."""
        bits = bits_of(x)
        negative = u32(i32(bits) >> i32(31))  # all ones or none
        dither = u32(dither ^ negative)
        magnitude = u32(bits & MAGNITUDE)
        magnitude = magnitude if magnitude >= least else u32(0)
        product = f32(float_of(magnitude) * scale)
        scaled = max(min(bits_of(product), ONE_BITS), smallest)
        code = u32(u32(between(scaled, dither)) + u32(negative & u32(last + i32(1))))
        return np.uint8(u32(0) if below(product, share_scale, dither) else code)

    return code_of


def _value_function(level_bits):
    @inline
    def value_of(code, last):
        """The float32 level of a code."""
        index = i32(i32(code) & last)
        bits = level_bits(index) if index > i32(0) else u32(0)
        sign = u32(u32(1 << 31) & mask(i32(code) > last))
        return float_of(u32(bits | sign))

    return value_of


def _integer_function(level_integer):
    @inline
    def integer_of(code, last):
        """The int64 level of a code."""
        magnitude = level_integer(i32(i32(code) & last))
        return np.int64(-magnitude) if i32(code) > last else magnitude

    return integer_of


UNIT = 40
#: 2^41·2^(-r/4) cut to an integer below it: half-units, so that a shift and a rounding half give
#: rint(2^40·b^-k), the tie at 2^-41 going to 0.
HALF0, HALF1, HALF2, HALF3 = (u64(math.ceil(2 ** (UNIT + 1 - r / 4)) - 1) for r in range(4))


@inline
def _rounded(half_units, octaves):
    return np.int64(u64(u64(half_units >> u64(min(octaves, u32(63)))) + u64(1)) >> u64(1))


@inline
def level_integer1(index):
    """``rint(2^40·2^-(index−1))``, and 0 for index 0, whose predecessor wraps to a huge shift."""
    return np.int64(u64(1 << UNIT) >> u64(min(u32(u32(index) - u32(1)), u32(63))))


@inline
def level_integer2(index):
    """The same for base √2."""
    down = u32(u32(index) - u32(1))
    odd = u64(u64(0) - u64(down & u32(1)))
    return _rounded(u64(HALF0 - u64(u64(HALF0 - HALF2) & odd)), u32(down >> u32(1)))


@inline
def level_integer4(index):
    """The same for base ⁴√2."""
    down = u32(u32(index) - u32(1))
    step = u32(down & u32(3))
    m1, m2, m3 = (
        u64(u64(0) - u64(step > u32(0))),
        u64(u64(0) - u64(step > u32(1))),
        u64(u64(0) - u64(step > u32(2))),
    )
    half_units = u64(HALF0 - u64(u64(HALF0 - HALF1) & m1))
    half_units = u64(half_units - u64(u64(HALF1 - HALF2) & m2))
    half_units = u64(half_units - u64(u64(HALF2 - HALF3) & m3))
    return _rounded(half_units, u32(down >> u32(2)))


#: By levels per octave.
BETWEEN = {1: between1, 2: between2, 4: between4}
CODE_OF = {key: _code_function(between, u32(1 << 23), below) for key, between in BETWEEN.items()}
#: Of whole numbers, none of which is subnormal; and where none lies below the smallest level.
CODE_OF_SUM = {key: _code_function(between, u32(0), below) for key, between in BETWEEN.items()}
CODE_OF_HIGH = {key: _code_function(between, u32(0), nothing) for key, between in BETWEEN.items()}
VALUE_OF = {
    1: _value_function(level_bits1),
    2: _value_function(level_bits2),
    4: _value_function(level_bits4),
}
INTEGER_OF = {
    1: _integer_function(level_integer1),
    2: _integer_function(level_integer2),
    4: _integer_function(level_integer4),
}


@inline
def float_from(bits):
    """The float32 that has the bits of a 32-bit integer."""
    return float_of(u32(bits))


@inline
def scale_for(norm):
    """Float32 ``2^24/norm``; see `exponential.scale_for`."""
    scale, increment = exponential_scale(norm)
    return float_of(u32(bits_of(scale) + increment))


PAIRS = u64(0x00FF00FF00FF00FF)
QUADS = u64(0x0000FFFF0000FFFF)
EIGHT = u64(0x00000000FFFFFFFF)


@inline
def squeeze(codes, bits):
    """Eight codes, one a byte, to the low 8·bits bits."""
    codes = u64(u64(codes & PAIRS) | u64(u64(u64(codes >> u64(8)) & PAIRS) << bits))
    codes = u64(u64(codes & QUADS) | u64(u64(u64(codes >> u64(16)) & QUADS) << u64(u64(2) * bits)))
    return u64(u64(codes & EIGHT) | u64(u64(codes >> u64(32)) << u64(u64(4) * bits)))


@inline
def spread(packed, bits):
    """The inverse of `squeeze`."""
    ones = u64(1)
    half = u64(u64(ones << u64(u64(4) * bits)) - ones)
    packed = u64(u64(packed & half) | u64(u64(u64(packed >> u64(u64(4) * bits)) & half) << u64(32)))
    quad = u64(u64(u64(ones << u64(u64(2) * bits)) - ones) * u64(0x0000000100000001))
    packed = u64(u64(packed & quad) | u64(u64(u64(packed >> u64(u64(2) * bits)) & quad) << u64(16)))
    pair = u64(u64(u64(ones << bits) - ones) * u64(0x0001000100010001))
    return u64(u64(packed & pair) | u64(u64(u64(packed >> bits) & pair) << u64(8)))
