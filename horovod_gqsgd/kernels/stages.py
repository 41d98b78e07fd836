"""Packed codes in the first cache, one a byte: what reductions work on."""

import numpy as np

from horovod_gqsgd.kernels.exponential import pack, unpack
from horovod_gqsgd.kernels.jit import serial

#: Codes a stage: the sums of four rows, 4 bytes each, stay in the first cache.
STAGE = 4096
#: Codes that are looked at together, whether there is anything in them.
RUN = 1024


@serial
def stage_end(at, high, start):
    """Where the stage from ``at`` on ends; none crosses a multiple of `STAGE` in the tensor."""
    return min(high, ((start + at) // STAGE + 1) * STAGE - start)


@serial
def _silent(rows, n, stride, at, end, bits):
    low, high = at // 8 * bits, -(-end // 8) * bits
    if rows[low] != 0:  # as of most gradients
        return False
    for i in range(n):
        found = np.uint8(0)
        for code in rows[i * stride + low : i * stride + high]:
            found = np.uint8(found | code)
        if found != 0:
            return False
    return True


@serial
def silence(rows, n, stride, at, end, bits):
    """Whether all rows begin with zeros at ``at``, and up to where (at most ``end``) that holds.

    Nothing is to be reduced there: gradients of embeddings are zero but for what was looked up.
    """
    begin = _silent(rows, n, stride, at, min(end, at + RUN), bits)
    stop = min(end, at + RUN)
    while stop < end and _silent(rows, n, stride, stop, min(end, stop + RUN), bits) == begin:
        stop = min(end, stop + RUN)
    return begin, stop


@serial
def load(row, at, end, codes, bits):
    """The codes at … end − 1 of a packed row; returns where they are."""
    if bits == 8:
        return row[at:end]
    groups = -(-(end - at) // 8)
    unpack(row[at // 8 * bits : (at // 8 + groups) * bits], codes, bits)
    return codes[: end - at]


@serial
def result(packed, at, end, codes, bits):
    """Where the reduced codes at … end − 1 go, one a byte, until `store`."""
    return packed[at:end] if bits == 8 else codes[: end - at]


@serial
def store(codes, packed, at, end, bits):
    """Pack what is in `result`, with zeros up to a whole group of eight."""
    padded = -(-(end - at) // 8) * 8
    if bits == 8:
        packed[end : at + padded] = 0
    else:
        codes[end - at : padded] = 0
        pack(codes[:padded], packed[at // 8 * bits :], bits)


@serial
def blank(packed, at, end, bits):
    """Zeros for the codes at … end − 1, and up to a whole group of eight."""
    packed[at // 8 * bits : -(-end // 8) * bits] = 0
