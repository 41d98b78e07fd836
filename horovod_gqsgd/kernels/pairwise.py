"""The pairwise reduction on the CPU: a tree of stochastic additions in code space."""

import numpy as np
from numba import prange

from horovod_gqsgd.codecs.exponential import UNIT, scale_for
from horovod_gqsgd.kernels.bases import base_of, code_of, integer_of
from horovod_gqsgd.kernels.draws import row
from horovod_gqsgd.kernels.jit import CHUNK, parallel, serial
from horovod_gqsgd.kernels.scalars import f32, finalise, hash32, multiply, u32
from horovod_gqsgd.kernels.stages import STAGE, load, result, stage_end, store
from horovod_gqsgd.reductions import tree


def reduce(rows, n, stride, packed, size, start, levels, keys, threads):
    """``packed`` from n flat packed ``rows``, ``stride`` bytes apart."""
    nodes = tree(n)
    weights = np.array([[node.left, node.right] for node in nodes], np.int64).reshape(-1, 2)
    places = np.array([[node.low, node.middle] for node in nodes], np.int64).reshape(-1, 2)
    scales = scale_for((weights.sum(axis=1) << UNIT).astype(f32))
    run = _parallel if threads else _serial
    additions = (places, weights, scales)
    run(rows, n, stride, packed, size, start, additions, base_of(levels), keys)


@serial
def _combine(left, right, a, b, scale, middle, first, key, base):
    """One node of the tree, in place of its left side."""
    k0, k1, _k2, _k3 = key
    salt = multiply(u32(middle), u32(0x9E3779B9))
    for j in range(left.size):
        random = finalise(u32(hash32(u32(first + u32(j)), k0, k1) + salt))
        total = a * integer_of(base, left[j]) + b * integer_of(base, right[j])
        left[j] = code_of(base, f32(total), scale, random)


@serial
def _range(rows, n, stride, packed, low, high, start, nodes, base, keys):
    places, weights, scales = nodes
    codes = np.empty(n * STAGE, np.uint8)
    at = low
    while at < high:
        end = stage_end(at, high, start)
        count = end - at
        for i in range(n):
            mine = codes[i * STAGE : (i + 1) * STAGE]
            mine[:count] = load(rows[i * stride :], at, end, mine, base.bits)
        key = row(keys, start + at)
        for node in range(scales.size):
            left, right = places[node, 0] * STAGE, places[node, 1] * STAGE
            _combine(
                codes[left : left + count],
                codes[right : right + count],
                weights[node, 0],
                weights[node, 1],
                scales[node],
                places[node, 1],
                u32(start + at),
                key,
                base,
            )
        result(packed, at, end, codes, base.bits)[:] = codes[:count]
        store(codes[:STAGE], packed, at, end, base.bits)
        at = end


@serial
def _serial(rows, n, stride, packed, size, start, nodes, base, keys):
    _range(rows, n, stride, packed, 0, size, start, nodes, base, keys)


@parallel
def _parallel(rows, n, stride, packed, size, start, nodes, base, keys):
    for task in prange(0, -(-size // CHUNK)):
        high = min(size, (task + 1) * CHUNK)
        _range(rows, n, stride, packed, task * CHUNK, high, start, nodes, base, keys)
