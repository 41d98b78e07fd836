"""Linear levels {−s..s}/s: standard dithering against the global norm.

``E[q]·N/s == x`` and ``|q·N/s − x| < N/s`` for every element. Digits of all ranks add up as
integers, and a lane of ``bits`` bits holds the sum of n ranks for any data, because s is chosen
for n.
"""

import numpy as np

#: Lane widths, each with the number of lanes that fill a 32-bit word.
LANES = {3: 10, 4: 8, 5: 6, 6: 5, 8: 4, 10: 3, 16: 2}


def level_count(bits: int, n: int) -> int:
    """``s = floor((2^bits − 1) / 2n)``, the levels on each side of zero.

    >>> level_count(8, 4), level_count(5, 2)
    (31, 7)
    >>> level_count(4, 16)
    Traceback (most recent call last):
    ValueError: bits=4 cannot hold 16 workers (needs at least 6): raise bits, or use
    levels="exponential"
    """
    s = (2**bits - 1) // (2 * n)
    if s >= 1:
        return s
    enough = [width for width in LANES if 2**width - 1 >= 2 * n]
    fix = f"needs at least {enough[0]}" if enough else "no width can"
    raise ValueError(
        f"bits={bits} cannot hold {n} workers ({fix}): "
        f'{"raise bits, or " if enough else ""}use levels="exponential"'
    )


def fraction_bits(s: int) -> int:
    """``F = min(16, 22 − bit_length(s − 1))``: s·2^F ≤ 2^22 keeps fixed point exact in float32."""
    return min(16, 22 - (s - 1).bit_length())


def encode(x: np.ndarray, norm: np.ndarray, s: int, dither: np.ndarray) -> np.ndarray:
    """Round ``x·s/norm`` to an integer in {−s..s} without bias, ``floor(x·s/norm + u)``.

    One float multiplication, then integers: every machine gives the same digits. Where the norm
    is 0 or not finite the digit is 0.

    >>> encode(np.array([1, -1, 0.5], np.float32), np.float32(1), 3, np.uint32(1 << 31))
    array([ 3, -3,  2], dtype=int32)
    """
    fraction = fraction_bits(s)
    limit = s << fraction
    usable = np.isfinite(norm) & (norm > 0)
    scale = np.where(usable, np.float32(limit) / np.where(usable, norm, 1), 0).astype(np.float32)
    scaled = np.rint(np.where(usable, x, 0).astype(np.float32) * scale)
    fixed = np.clip(scaled, -limit, limit).astype(np.int32)
    return (fixed + (dither >> np.uint32(32 - fraction)).astype(np.int32)) >> np.int32(fraction)


def decode(total: np.ndarray, norm: np.ndarray, s: int, n: int, factor: float = 1.0) -> np.ndarray:
    """``fl(total/(s·n))·factor·norm``, the mean of n ranks for ``factor`` 1; NaN for a bad norm.

    A total of ±s·n gives ±norm exactly.
    """
    mean = total.astype(np.float32) / np.float32(s * n)
    with np.errstate(over="ignore"):
        value = mean * np.float32(factor) * np.where(np.isfinite(norm), norm, np.float32(0))
    return np.where(np.isfinite(norm), value, np.float32(np.nan))
