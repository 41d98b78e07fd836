"""Dither inside CPU kernels: the kind of rounding is a type, so each loop is compiled for one."""

import functools
from typing import NamedTuple

import numpy as np
from numba.extending import overload

from horovod_gqsgd.dither import SHARED, Dither, fnv1a64
from horovod_gqsgd.kernels.jit import serial
from horovod_gqsgd.kernels.scalars import (
    folded,
    hash32,
    philox4x32,
    place,
    stratify,
    stratify_binary,
    u32,
)


class Independent(NamedTuple):
    """One word per element; keys in columns 0 and 1."""

    n: np.uint32


class Correlated(NamedTuple):
    """`scalars.stratify`: private keys in columns 0 and 1, shared ones in 2 and 3."""

    place: np.uint32
    n: np.uint32
    width: np.uint32


class CorrelatedBinary(NamedTuple):
    """`scalars.stratify_binary`, for n a power of two."""

    start: np.uint32
    mask: np.uint32
    shift: np.uint32


Kind = Independent | Correlated | CorrelatedBinary


@serial
def _derive(seed, step, name_low, name_high, rank, n, highs):
    """Private keys in columns 0 and 1 and shared ones in 2 and 3, by high half; and π(rank)."""
    keys = np.empty((highs, 4), np.uint32)
    mine = u32(0)
    for high in range(highs):
        k0, k1, _, _ = philox4x32(seed, step, rank, u32(high), name_low, name_high)
        s0, s1, s2, s3 = philox4x32(seed, step, u32(SHARED), u32(high), name_low, name_high)
        keys[high, 0], keys[high, 1], keys[high, 2], keys[high, 3] = k0, k1, s0, s1
        if high == 0:
            mine = place(rank, n, s2, s3)
    return keys, mine


_name_hash = functools.lru_cache(maxsize=8192)(fnv1a64)


def plan(dither: Dither, rounding: str, rank: int, n: int, size: int) -> tuple[Kind, np.ndarray]:
    """Kind and keys of ``rank``: a row of keys for each 2^32 elements."""
    name = _name_hash(dither.name)
    key = (u32(dither.seed), u32(dither.step), u32(name & 0xFFFFFFFF), u32(name >> 32))
    keys, mine = _derive(*key, u32(rank), u32(n), max(size - 1, 0) // 2**32 + 1)
    if rounding == "independent" or n == 1:
        return Independent(u32(n)), keys
    if n & (n - 1):
        return Correlated(u32(mine), u32(n), u32(2**32 // n)), keys
    shift = n.bit_length() - 1
    width = 2**32 >> shift
    return CorrelatedBinary(u32(mine * width), u32(2**32 - width), u32(shift)), keys


@serial
def row(keys, start):
    """The keys of the element with index ``start``, as `hash32` takes them."""
    high = start >> 32
    return *folded(keys[high, 0], keys[high, 1]), *folded(keys[high, 2], keys[high, 3])


def draw(kind, index, k0, k1, k2, k3):
    """The dither word of an element, given the low half of its index."""
    raise NotImplementedError("only inside kernels")


@overload(draw)
def _draw(kind, index, k0, k1, k2, k3):
    if kind.instance_class is Independent:
        return lambda kind, index, k0, k1, k2, k3: hash32(index, k0, k1)
    if kind.instance_class is Correlated:
        return lambda kind, index, k0, k1, k2, k3: stratify(
            hash32(index, k2, k3), hash32(index, k0, k1), kind.place, kind.n, kind.width
        )
    return lambda kind, index, k0, k1, k2, k3: stratify_binary(
        hash32(index, k2, k3), hash32(index, k0, k1), kind.start, kind.mask, kind.shift
    )
