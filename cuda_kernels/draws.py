"""Dither inside CUDA kernels: every kernel is made for one kind of rounding.

Keys come from a device array that `prepare` fills: π(rank), then six words for every 2^32
elements: two of the rank's own stream, two of the shared one, two of the reduction's, as `hash32`
takes them.
"""

import numpy as np

from horovod_gqsgd.cuda_kernels.access import device, item
from horovod_gqsgd.kernels.scalars import (
    hash32,
    inline,
    multiply,
    stratify,
    stratify_binary,
    u32,
)

i64 = np.int64

#: Words of a row of keys.
ROW = 6


@inline
def _independent(index, k0, k1, k2, k3, place, n, width, shift):
    return hash32(index, k0, k1)


@inline
def _correlated(index, k0, k1, k2, k3, place, n, width, shift):
    return stratify(hash32(index, k2, k3), hash32(index, k0, k1), place, n, width)


@inline
def _binary(index, k0, k1, k2, k3, place, n, width, shift):
    start, mask = multiply(place, width), u32(~u32(width - u32(1)))
    return stratify_binary(hash32(index, k2, k3), hash32(index, k0, k1), start, mask, shift)


#: By kind: independent, correlated for any n, correlated for n a power of two.
DRAWS = {"independent": _independent, "correlated": _correlated, "binary": _binary}


@device
def keys_of(keys, high):
    """Own and shared keys of the elements whose index has this upper half."""
    row = i64(1) + i64(ROW) * high
    return item(keys, row), item(keys, row + 1), item(keys, row + 2), item(keys, row + 3)
