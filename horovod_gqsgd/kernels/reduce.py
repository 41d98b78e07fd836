"""Reductions of exponential codes on the CPU: n packed rows in, one packed row out.

Codes pass through the first cache in stages, so that memory is read and written once whatever
the number of rows and bits.
"""

import numpy as np
from numba import prange
from numpy.lib.stride_tricks import as_strided

from horovod_gqsgd.dither import REDUCTION, Dither
from horovod_gqsgd.exponential import UNIT, Levels, packed_size, scale_for
from horovod_gqsgd.exponential import pack as spec_pack
from horovod_gqsgd.exponential import unpack as spec_unpack
from horovod_gqsgd.kernels.bases import base_of, code_of, integer_of
from horovod_gqsgd.kernels.draws import row
from horovod_gqsgd.kernels.exponential import pack, unpack
from horovod_gqsgd.kernels.jit import CHUNK, SERIAL, parallel, serial
from horovod_gqsgd.kernels.scalars import f32, finalise, hash32, multiply, u32
from horovod_gqsgd.reductions import Reduction, tree

#: Elements a stage: sums of 8 bytes each stay in the first cache.
STAGE = 1024


def reduce(
    reduction: Reduction,
    rows: np.ndarray,
    levels: Levels,
    packed: np.ndarray,
    size: int,
    dither: Dither,
    start: int = 0,
) -> None:
    """Reduce ``rows`` (uint8[n, bytes], packed) of ``size`` codes into ``packed``.

    ``start`` is the index in the tensor of the first code, a multiple of eight. The rows may be a
    part of longer ones.
    """
    n = len(rows)
    stride = rows.strides[0]
    highs = range((start + max(size, 1) - 1) // 2**32 + 1)
    keys = np.array([dither.keys(REDUCTION, high) for high in highs], u32)
    # Kernels take one flat array: rows of a sliced array would keep them from vectorising.
    flat = as_strided(rows, ((n - 1) * stride + rows.shape[1],), (1,), writeable=False)
    base = base_of(levels)
    threads = size * n >= SERIAL
    if reduction.name == "exact":
        scale = scale_for(np.array([n << UNIT], f32))[0]
        run = _exact_parallel if threads else _exact_serial
        run(flat, n, stride, packed, size, start, scale, base, keys)
    elif reduction.name == "pairwise":
        nodes = tree(n)
        weights = np.array([[node.left, node.right] for node in nodes], np.int64).reshape(-1, 2)
        places = np.array([[node.low, node.middle] for node in nodes], np.int64).reshape(-1, 2)
        scales = scale_for((weights.sum(axis=1) << UNIT).astype(f32))
        run = _pairwise_parallel if threads else _pairwise_serial
        run(flat, n, stride, packed, size, start, places, weights, scales, base, keys)
    else:
        _registered(reduction, rows, levels, packed, size, dither, start)


def _registered(reduction, rows, levels, packed, size, dither, start):
    """A user's reduction, in chunks: it sees codes one a byte."""
    for at in range(0, size, CHUNK):
        count = min(CHUNK, size - at)
        part = slice(packed_size(at, levels.bits), packed_size(at + count, levels.bits))
        codes = np.stack([spec_unpack(row[part], levels.bits, count) for row in rows])
        reduced = reduction.reduce(codes, levels, dither.reduction(start + at, count))
        if np.shape(reduced) != (count,) or reduced.dtype != np.uint8:
            raise ValueError(
                f"reduction {reduction.name!r} returned {reduced.dtype}{list(np.shape(reduced))} "
                f"for codes of shape {list(codes.shape)}: return uint8[{count}], one code an "
                "element, as levels.encode gives"
            )
        packed[part] = spec_pack(reduced, levels.bits)


@serial
def _stage(row_bytes, at, end, codes, bits):
    """The codes at … end − 1 of one packed row, one a byte; returns where they are."""
    if bits == 8:
        return row_bytes[at:end]
    groups = -(-(end - at) // 8)
    unpack(row_bytes[at // 8 * bits : (at // 8 + groups) * bits], codes, bits)
    return codes[: end - at]


@serial
def _emit(codes, packed, at, end, bits):
    """The inverse of `_stage` for the result."""
    padded = -(-(end - at) // 8) * 8
    codes[end - at : padded] = 0
    if bits == 8:
        packed[at : at + padded] = codes[:padded]
    else:
        pack(codes[:padded], packed[at // 8 * bits :], bits)


@serial
def _add(codes, sums, base):
    for j in range(codes.size):
        sums[j] += integer_of(base, codes[j])


@serial
def _round(sums, scale, codes, first, key, base):
    k0, k1, _k2, _k3 = key
    for j in range(codes.size):
        random = hash32(u32(first + u32(j)), k0, k1)
        codes[j] = code_of(base, f32(sums[j]), scale, random)


@serial
def _exact_range(rows, n, stride, packed, low, high, start, scale, base, keys):
    codes, sums = np.empty(STAGE, np.uint8), np.empty(STAGE, np.int64)
    for at in range(low, high, STAGE):
        end = min(high, at + STAGE)
        sums[:] = 0
        for i in range(n):
            _add(_stage(rows[i * stride :], at, end, codes, base.bits), sums, base)
        key = row(keys, start + at)
        _round(sums, scale, codes[: end - at], u32(start + at), key, base)
        _emit(codes, packed, at, end, base.bits)


@serial
def _exact_serial(rows, n, stride, packed, size, start, scale, base, keys):
    _exact_range(rows, n, stride, packed, 0, size, start, scale, base, keys)


@parallel
def _exact_parallel(rows, n, stride, packed, size, start, scale, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        high = min(size, (task + 1) * CHUNK)
        _exact_range(rows, n, stride, packed, task * CHUNK, high, start, scale, base, keys)


@serial
def _combine(left, right, a, b, scale, middle, first, key, base):
    """One node of the tree, in place of its left side."""
    k0, k1, _k2, _k3 = key
    salt = multiply(u32(middle), u32(0x9E3779B9))
    for j in range(left.size):
        random = finalise(u32(hash32(u32(first + u32(j)), k0, k1) + salt), u32(0))
        total = a * integer_of(base, left[j]) + b * integer_of(base, right[j])
        left[j] = code_of(base, f32(total), scale, random)


@serial
def _pairwise_range(rows, n, stride, packed, low, high, start, places, weights, scales, base, keys):
    codes = np.empty(n * STAGE, np.uint8)
    for at in range(low, high, STAGE):
        end = min(high, at + STAGE)
        count = end - at
        for i in range(n):
            mine = codes[i * STAGE : (i + 1) * STAGE]
            staged = _stage(rows[i * stride :], at, end, mine, base.bits)
            mine[:count] = staged
        key = row(keys, start + at)
        for node in range(places.shape[0]):
            left, right = places[node, 0], places[node, 1]
            _combine(
                codes[left * STAGE : left * STAGE + count],
                codes[right * STAGE : right * STAGE + count],
                weights[node, 0],
                weights[node, 1],
                scales[node],
                right,
                u32(start + at),
                key,
                base,
            )
        _emit(codes[:STAGE], packed, at, end, base.bits)


@serial
def _pairwise_serial(rows, n, stride, packed, size, start, places, weights, scales, base, keys):
    _pairwise_range(rows, n, stride, packed, 0, size, start, places, weights, scales, base, keys)


@parallel
def _pairwise_parallel(rows, n, stride, packed, size, start, places, weights, scales, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        high = min(size, (task + 1) * CHUNK)
        low = task * CHUNK
        _pairwise_range(
            rows, n, stride, packed, low, high, start, places, weights, scales, base, keys
        )
