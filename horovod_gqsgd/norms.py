"""Global norms: ‖x‖_{q,p} = (Σ_i ‖x_i‖_q^p)^{1/p} over the ranks i, one for every block.

Each rank computes `local`, one allreduce joins them (`Max` of int32 for p = ∞, `Sum` of float64
for finite p), and `joined` turns the result into the float32 norms that encode and decode use.
"""

import numpy as np

INF = "inf"

#: Norms below this count as zero: quantising scales would leave the range of float32.
SMALLEST = np.float32(2.0**-96)

#: Lanes and unit of the float64 sums, which fix the order of every addition.
SUM_LANES = 32
SUM_UNIT = 65_536


def as_float32(x: np.ndarray) -> np.ndarray:
    """Flatten ``x`` to float32. ``uint16`` holds the bits of bfloat16, which NumPy lacks.

    >>> as_float32(np.array([0x3F80, 0xC000], np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    x = x.reshape(-1)
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):  # beyond float32: Inf, and so a NaN block
        return np.ascontiguousarray(x, np.float32)


def store(values: np.ndarray, out: np.ndarray) -> None:
    """The inverse of `as_float32`: float32 ``values`` into ``out``, rounded to nearest, even.

    >>> store(np.array([1, 1.00390625, np.nan], np.float32), out := np.empty(3, np.uint16))
    >>> [f"{bits:04x}" for bits in out]
    ['3f80', '3f80', '7fc0']
    """
    if out.dtype != np.uint16:
        with np.errstate(over="ignore"):
            out[:] = values
        return
    bits = values.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    out[:] = np.where(np.isnan(values), np.uint32(0x7FC0), nearest)


def magnitude_bits(x: np.ndarray) -> np.ndarray:
    """The bits of |x| as int32: ordered like |x|, with Inf above all numbers and NaN above Inf."""
    return as_float32(x).view(np.int32) & np.int32(0x7FFFFFFF)


def blocks(size: int, block: int | None) -> int:
    """How many blocks (norms) a tensor has.

    >>> blocks(1025, 1024), blocks(1025, None), blocks(0, None)
    (2, 1, 0)
    """
    return -(-size // (block or max(size, 1)))


def local(x: np.ndarray, q: int | str, p: int | str, block: int | None) -> np.ndarray:
    """What one rank contributes: bits of ‖x_i‖_q as int32 for p = ∞, else ‖x_i‖_q^p as float64.

    >>> x = np.array([3, -4], np.float32)
    >>> local(x, "inf", "inf", None).view(np.float32), local(x, 2, 2, None), local(x, 1, 2, None)
    (array([4.], dtype=float32), array([25.]), array([49.]))
    """
    count = blocks(x.size, block)
    block = block or max(x.size, 1)
    if q == INF:
        bits = magnitude_bits(x)
        maxima = [bits[i * block : (i + 1) * block].max() for i in range(count)]
        return power(np.array(maxima, np.int32), q, p)
    flat = as_float32(x)
    sums = [_sum(flat[i * block : (i + 1) * block], q) for i in range(count)]
    return power(np.array(sums, np.float64), q, p)


def power(reduced: np.ndarray, q: int | str, p: int | str) -> np.ndarray:
    """``‖x_i‖_q^p`` from the bits of max|x| (q = ∞) or from Σ|x|^q, with q and p in {1, 2, ∞}.

    >>> power(np.array([9.0]), 2, 1), power(np.array([3.0]), 1, 2)
    (array([3.]), array([9.]))
    """
    if q == p:
        return reduced
    if q == INF:
        norm = reduced.view(np.float32).astype(np.float64)
    else:
        norm = reduced if q == 1 else np.sqrt(reduced)
    if p == INF:
        with np.errstate(over="ignore"):
            return magnitude_bits(norm)
    return norm if p == 1 else norm * norm


def _sum(x: np.ndarray, q: int | str) -> np.float64:
    """Σ|x|^q in float64: 32 strided lanes in units of 65,536 elements, lanes halved, units in turn.

    A product of two float32 is exact in float64, so a fused multiply-add changes nothing.
    """
    total = np.float64(0)
    for start in range(0, x.size, SUM_UNIT):
        unit = x[start : start + SUM_UNIT].astype(np.float64)
        unit = np.pad(np.abs(unit) if q == 1 else unit * unit, (0, -unit.size % SUM_LANES))
        lanes = np.zeros(SUM_LANES, np.float64)
        for row in unit.reshape(-1, SUM_LANES):
            lanes += row
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        total += lanes[0]
    return total


def joined(reduced: np.ndarray, p: int | str) -> np.ndarray:
    """The float32 global norms from the reduced contributions; below 2^-96 they are 0.

    >>> joined(np.array([25.0, 2.0**-200]), 2)
    array([5., 0.], dtype=float32)
    """
    if p == INF:
        norm = reduced.view(np.float32)
    else:
        with np.errstate(over="ignore"):
            norm = (reduced if p == 1 else np.sqrt(reduced)).astype(np.float32)
    return np.where(norm < SMALLEST, np.float32(0), norm)


def spread(norms: np.ndarray, size: int, block: int | None) -> np.ndarray:
    """Repeat block norms to one per element.

    >>> spread(np.array([1, 2], np.float32), 5, 4)
    array([1., 1., 1., 1., 2.], dtype=float32)
    """
    return np.repeat(norms, block or max(size, 1))[:size]
