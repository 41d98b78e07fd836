"""Reductions of exponential codes on the CPU: n packed rows in, one packed row out.

Codes pass through the first cache in stages, so that memory is read and written once whatever
the number of rows and bits.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided

from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.dither import REDUCTION, Dither
from horovod_gqsgd.kernels import exact, pairwise
from horovod_gqsgd.kernels.exponential import pack, unpack
from horovod_gqsgd.kernels.jit import CHUNK, SERIAL
from horovod_gqsgd.kernels.level_sums import MOST_ROWS
from horovod_gqsgd.kernels.scalars import u32
from horovod_gqsgd.reductions import BUILTIN, Reduction


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
    n, stride = len(rows), rows.strides[0]
    if reduction.name not in BUILTIN or n > MOST_ROWS:
        _registered(reduction, rows, levels, packed, size, dither, start)
        return
    # Kernels take one flat array: rows of a sliced array would keep them from vectorising.
    span = ((n - 1) * stride + rows.shape[1],)
    flat = rows.reshape(-1) if rows.flags.c_contiguous else as_strided(rows, span, (1,))
    flat.flags.writeable = False  # one type, whatever the caller's
    highs = range((start + max(size, 1) - 1) // 2**32 + 1)
    keys = np.array([dither.keys(REDUCTION, high) for high in highs], u32)
    run = exact.reduce if reduction.name == "exact" else pairwise.reduce
    run(flat, n, stride, packed, size, start, levels, keys, size * n >= SERIAL)


def _registered(reduction, rows, levels, packed, size, dither, start):
    """A user's reduction, in chunks: it sees codes one a byte."""
    bits = levels.bits
    for at in range(0, size, CHUNK):
        count = min(CHUNK, size - at)
        groups = -(-count // 8)
        part = slice(at // 8 * bits, (at // 8 + groups) * bits)
        codes = np.empty((len(rows), 8 * groups), np.uint8)
        for row, unpacked in zip(rows, codes, strict=True):
            unpack(row[part], unpacked, bits)
        codes = codes[:, :count]
        reduced = np.asarray(reduction.reduce(codes, levels, dither.reduction(start + at, count)))
        if reduced.shape != (count,) or reduced.dtype != np.uint8:
            raise ValueError(
                f"reduction {reduction.name!r} returned {reduced.dtype}{list(reduced.shape)} "
                f"for codes of shape {list(codes.shape)}: return uint8[{count}], one code an "
                "element, as levels.encode gives"
            )
        reduction.check_codes(int(reduced.max()), bits)
        padded = np.zeros(8 * groups, np.uint8)
        padded[:count] = reduced
        pack(padded, packed[part], bits)
