"""Exponential levels inside CPU kernels: the base is a type, so each loop is compiled for one."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from horovod_gqsgd.exponential import Levels
from horovod_gqsgd.kernels import scalars
from horovod_gqsgd.kernels.casts import bits_of, float_of
from horovod_gqsgd.kernels.jit import serial
from horovod_gqsgd.kernels.scalars import (
    MAGNITUDE,
    ONE_BITS,
    exponential_scale,
    f32,
    i32,
    inline,
    mask,
    u32,
)


class Octave1(NamedTuple):
    """Base 2."""

    bits: int
    last: np.int32
    smallest: np.uint32
    share_scale: np.float32


class Octave2(NamedTuple):
    """Base √2."""

    bits: int
    last: np.int32
    smallest: np.uint32
    share_scale: np.float32


class Octave4(NamedTuple):
    """Base ⁴√2."""

    bits: int
    last: np.int32
    smallest: np.uint32
    share_scale: np.float32


Base = Octave1 | Octave2 | Octave4


@functools.cache
def base_of(levels: Levels) -> Base:
    """The levels as kernels take them."""
    kind: Any = {1: Octave1, 2: Octave2, 4: Octave4}[levels.octave]
    return kind(levels.bits, i32(levels.count), levels.smallest_bits, levels.share_scale)


def between(base, scaled, dither):
    raise NotImplementedError("only inside kernels")


def level_bits(base, index):
    raise NotImplementedError("only inside kernels")


def level_integer(base, index):
    raise NotImplementedError("only inside kernels")


@overload(between)
def _between(base, scaled, dither):
    function = getattr(scalars, "between" + base.instance_class.__name__[-1])
    return lambda base, scaled, dither: function(scaled, dither)


@overload(level_bits)
def _level_bits(base, index):
    function = getattr(scalars, "level_bits" + base.instance_class.__name__[-1])
    return lambda base, index: function(index)


@overload(level_integer)
def _level_integer(base, index):
    function = getattr(scalars, "level_integer" + base.instance_class.__name__[-1])
    return lambda base, index: function(index)


@serial
def scale_for(norm):
    """Float32 ``2^24/norm``; see `exponential.scale_for`."""
    scale, increment = exponential_scale(norm)
    return float_of(u32(bits_of(scale) + increment))


@inline
def code_of(base, x, scale, dither):
    """The code of ``x·scale/2^24``; see `exponential.Levels.encode_scaled`."""
    bits = bits_of(x)
    negative = u32(i32(bits) >> i32(31))  # all ones or none
    dither = u32(dither ^ negative)
    magnitude = u32(bits & MAGNITUDE)
    magnitude = magnitude if magnitude >= u32(1 << 23) else u32(0)
    product = f32(float_of(magnitude) * scale)
    scaled = max(min(bits_of(product), ONE_BITS), base.smallest)
    code = u32(u32(between(base, scaled, dither)) + u32(negative & u32(base.last + i32(1))))
    return np.uint8(u32(0) if scalars.below(product, base.share_scale, dither) else code)


@inline
def value_of(base, code):
    """The float32 level of a code."""
    index = i32(i32(code) & base.last)
    bits = level_bits(base, index) if index > i32(0) else u32(0)
    sign = u32(u32(1 << 31) & mask(i32(code) > base.last))
    return float_of(u32(bits | sign))


@serial
def integer_of(base, code):
    """The int64 level of a code."""
    magnitude = level_integer(base, i32(i32(code) & base.last))
    return np.int64(-magnitude) if i32(code) > base.last else magnitude
