"""Exponential levels inside CPU kernels: the base is a type, so each loop is compiled for one."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.kernels import scalars
from horovod_gqsgd.kernels.jit import serial
from horovod_gqsgd.kernels.scalars import f32, i32, u32


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


@serial
def scale_for(norm):
    """Float32 ``2^24/norm``; see `exponential.scale_for`."""
    return scalars.scale_for(norm)


def code_of(base, x, scale, dither):
    """The code of ``x·scale/2^24``."""
    raise NotImplementedError("only inside kernels")


def code_of_sum(base, total, scale, dither):
    """The same of a sum of integer levels."""
    raise NotImplementedError("only inside kernels")


def code_of_high(base, total, scale, dither):
    """The same if no sum but 0 lies below the smallest level."""
    raise NotImplementedError("only inside kernels")


def value_of(base, code):
    """The float32 level of a code."""
    raise NotImplementedError("only inside kernels")


def integer_of(base, code):
    """The int64 level of a code."""
    raise NotImplementedError("only inside kernels")


@overload(code_of)
def _code_of(base, x, scale, dither):
    function = scalars.CODE_OF[octave_of(base)]
    return lambda base, x, scale, dither: function(
        x, scale, dither, base.last, base.smallest, base.share_scale
    )


@overload(code_of_sum)
def _code_of_sum(base, total, scale, dither):
    function = scalars.CODE_OF_SUM[octave_of(base)]
    return lambda base, total, scale, dither: function(
        f32(total), scale, dither, base.last, base.smallest, base.share_scale
    )


@overload(code_of_high)
def _code_of_high(base, total, scale, dither):
    function = scalars.CODE_OF_HIGH[octave_of(base)]
    return lambda base, total, scale, dither: function(
        f32(total), scale, dither, base.last, u32(0), f32(0)
    )


@overload(value_of)
def _value_of(base, code):
    function = scalars.VALUE_OF[octave_of(base)]
    return lambda base, code: function(code, base.last)


@overload(integer_of)
def _integer_of(base, code):
    function = scalars.INTEGER_OF[octave_of(base)]
    return lambda base, code: function(code, base.last)


def octave_of(base):
    """Levels in an octave, of the type of a base."""
    return {Octave1: 1, Octave2: 2, Octave4: 4}[base.instance_class]
