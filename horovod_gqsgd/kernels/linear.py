"""Linear levels on the CPU: encode and pack in one pass, unpack and decode in one pass.

Lanes of a full tile are runs of 1,024 elements. Four of them share a loop: four concurrent
streams keep the memory busy, more would overflow the ways of the first cache. What is left, the
lanes beyond a multiple of four and the last tile, goes lane by lane.
"""

import functools

import numpy as np
from numba import prange

from horovod_gqsgd import lanes
from horovod_gqsgd.codecs.linear import LANES, fraction_bits, level_count
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.kernels.casts import as_float32, as_item_of, view
from horovod_gqsgd.kernels.draws import draw, plan, row
from horovod_gqsgd.kernels.jit import CHUNK, SERIAL, parallel, serial, wide
from horovod_gqsgd.kernels.norm import all_zero
from horovod_gqsgd.kernels.scalars import (
    f32,
    i32,
    linear_digit,
    linear_scale,
    linear_value,
    norm_or_nan,
    u32,
)

RUN = lanes.TILE_WORDS


def encode(
    x: np.ndarray,
    norms: np.ndarray,
    block: int | None,
    bits: int,
    words: np.ndarray,
    dither: Dither,
    rounding: str,
    rank: int,
    n: int,
    start: int = 0,
    stop: int | None = None,
    own: np.ndarray | None = None,
) -> None:
    """Quantise ``x`` (flat, contiguous) against its block ``norms`` into ``words`` (int32).

    With ``start`` and ``stop`` only those elements, in whole tiles. Blocks whose norm in ``own``,
    this rank's alone, is 0 are not read.
    """
    kind, keys = plan(dither, rounding, rank, n, x.size)
    stop = x.size if stop is None else stop
    run = _encode_serial if stop - start < SERIAL else _encode_parallel
    scheme = (*_tiles(start, stop, bits), *_encoding(bits, n), keys, kind)
    blocks = (norms, norms if own is None else own, block or max(x.size, 1))
    run(view(x), *blocks, words, *scheme)


@functools.cache
def _encoding(bits: int, n: int) -> tuple:
    """Bits, lanes, levels with the bits of their fraction, and how many these are."""
    s = level_count(bits, n)
    fraction = fraction_bits(s)
    return bits, LANES[bits], i32(s << fraction), u32(fraction)


def decode(
    words: np.ndarray,
    norms: np.ndarray,
    block: int | None,
    bits: int,
    out: np.ndarray,
    n: int,
    factor: float = 1.0,
    start: int = 0,
    stop: int | None = None,
) -> None:
    """Turn the summed ``words`` of n ranks into their mean times ``factor``, in ``out``."""
    stop = out.size if stop is None else stop
    run = _decode_serial if stop - start < SERIAL else _decode_parallel
    scheme = (*_tiles(start, stop, bits), *_decoding(bits, n), f32(factor))
    run(words, norms, block or max(out.size, 1), view(out), *scheme)


@functools.cache
def _decoding(bits: int, n: int) -> tuple:
    """Bits, lanes, what makes all lanes of a sum positive, and the largest sum of a lane."""
    limit = level_count(bits, n) * n
    offset = sum(limit << bits * lane for lane in range(LANES[bits])) & 0xFFFFFFFF
    return bits, LANES[bits], u32(offset), i32(limit)


def _tiles(start: int, stop: int, bits: int) -> tuple[int, int]:
    """The tiles that hold the elements from ``start``, where one begins, to ``stop``."""
    size = RUN * LANES[bits]
    return start // size, -(-stop // size)


@serial
def _encode1(x, words, scale, shift, limit, fraction, first, key, kind):
    wide()
    k0, k1, k2, k3 = key
    for j in range(x.size):
        random = draw(kind, u32(first + u32(j)), k0, k1, k2, k3)
        digit = linear_digit(as_float32(x[j]), scale, limit, fraction, random)
        words[j] = i32(words[j] + i32(digit << i32(shift & u32(31))))


@serial
def _encode4(a, b, c, d, words, scales, shift, bits, keep, limit, fraction, first, key, kind):
    wide()
    k0, k1, k2, k3 = key
    sa, sb, sc, sd = scales
    # shift counts are masked, or the shifts are carried out in 64 bits
    shift_a = i32(shift & u32(31))
    shift_b = i32(u32(shift + bits) & u32(31))
    shift_c = i32(u32(shift + u32(2) * bits) & u32(31))
    shift_d = i32(u32(shift + u32(3) * bits) & u32(31))
    for j in range(words.size):
        index = u32(first + u32(j))
        ua = draw(kind, index, k0, k1, k2, k3)
        ub = draw(kind, u32(index + u32(RUN)), k0, k1, k2, k3)
        uc = draw(kind, u32(index + u32(2 * RUN)), k0, k1, k2, k3)
        ud = draw(kind, u32(index + u32(3 * RUN)), k0, k1, k2, k3)
        qa = i32(linear_digit(as_float32(a[j]), sa, limit, fraction, ua) << shift_a)
        qb = i32(linear_digit(as_float32(b[j]), sb, limit, fraction, ub) << shift_b)
        qc = i32(linear_digit(as_float32(c[j]), sc, limit, fraction, uc) << shift_c)
        qd = i32(linear_digit(as_float32(d[j]), sd, limit, fraction, ud) << shift_d)
        words[j] = i32(i32(words[j] & keep) + i32(i32(qa + qb) + i32(qc + qd)))


@serial
def _silent(x, own, block, start, stop):
    """Whether elements of one block are zeros, and so are their digits, whatever the dither."""
    return own[start // block] == f32(0) or all_zero(x[start:stop])


@serial
def _encode_lane(x, start, stop, norms, own, block, words, shift, limit, fraction, keys, kind):
    """Add the elements start … stop − 1 to ``words``, in pieces that share a norm and a key."""
    at = start
    while at < stop:
        end = min(stop, (at // block + 1) * block, ((at >> 32) + 1) << 32)
        if not _silent(x, own, block, at, end):
            piece, out = x[at:end], words[at - start : end - start]
            scale = linear_scale(norms[at // block], limit)
            _encode1(piece, out, scale, shift, limit, fraction, u32(at), row(keys, at), kind)
        at = end


@serial
def _encode_tile(x, norms, own, block, words, tile, bits, count, limit, fraction, keys, kind):
    start = tile * count * RUN
    stop = min(x.size, start + count * RUN)
    words = words[tile * RUN : min((tile + 1) * RUN, words.size)]
    full = stop - start == count * RUN and start >> 32 == (stop - 1) >> 32
    by_four = count // 4 * 4 if full else 0
    if by_four == 0:
        words[:] = 0
    step = min(block, RUN)
    for lane in range(0, by_four, 4):
        keep = i32(0) if lane == 0 else i32(-1)
        for at in range(0, RUN, step):
            a = start + lane * RUN + at
            b, c, d = a + RUN, a + 2 * RUN, a + 3 * RUN
            out = words[at : at + step]
            if (
                _silent(x, own, block, a, a + step)
                or _silent(x, own, block, b, b + step)
                or _silent(x, own, block, c, c + step)
                or _silent(x, own, block, d, d + step)
            ):
                out &= keep
                for i in range(4):
                    first, shift = a + i * RUN, u32(bits * (lane + i))
                    piece = (norms, own, block, out, shift, limit, fraction, keys, kind)
                    _encode_lane(x, first, first + step, *piece)
                continue
            scales = (
                linear_scale(norms[a // block], limit),
                linear_scale(norms[b // block], limit),
                linear_scale(norms[c // block], limit),
                linear_scale(norms[d // block], limit),
            )
            _encode4(
                x[a : a + step],
                x[b : b + step],
                x[c : c + step],
                x[d : d + step],
                out,
                scales,
                u32(bits * lane),
                u32(bits),
                keep,
                limit,
                fraction,
                u32(a),
                row(keys, a),
                kind,
            )
    for lane in range(by_four, count):
        a = start + lane * words.size
        b = min(stop, a + words.size)
        shift = u32(bits * lane)
        _encode_lane(x, a, b, norms, own, block, words, shift, limit, fraction, keys, kind)


@serial
def _encode_serial(
    x, norms, own, block, words, low, high, bits, count, limit, fraction, keys, kind
):
    for tile in range(low, high):
        _encode_tile(x, norms, own, block, words, tile, bits, count, limit, fraction, keys, kind)


@parallel
def _encode_parallel(
    x, norms, own, block, words, low, high, bits, count, limit, fraction, keys, kind
):
    group = max(1, CHUNK // (count * RUN))
    for task in prange(0, -(-(high - low) // group)):
        for tile in range(low + task * group, min(high, low + (task + 1) * group)):
            _encode_tile(
                x, norms, own, block, words, tile, bits, count, limit, fraction, keys, kind
            )


@serial
def _decode1(words, out, norm, shift, mask, offset, limit, factor):
    shift = u32(shift & u32(31))
    for j in range(out.size):
        lifted = u32(u32(words[j]) + offset)
        total = i32(i32(u32(lifted >> shift) & mask) - limit)
        out[j] = as_item_of(out, linear_value(total, limit, factor, norm))


@serial
def _decode4(words, a, b, c, d, norms, shift, bits, mask, offset, limit, factor):
    na, nb, nc, nd = norms
    shift_a = u32(shift & u32(31))
    shift_b = u32(u32(shift + bits) & u32(31))
    shift_c = u32(u32(shift + u32(2) * bits) & u32(31))
    shift_d = u32(u32(shift + u32(3) * bits) & u32(31))
    for j in range(words.size):
        lifted = u32(u32(words[j]) + offset)
        qa = i32(i32(u32(lifted >> shift_a) & mask) - limit)
        qb = i32(i32(u32(lifted >> shift_b) & mask) - limit)
        qc = i32(i32(u32(lifted >> shift_c) & mask) - limit)
        qd = i32(i32(u32(lifted >> shift_d) & mask) - limit)
        a[j] = as_item_of(a, linear_value(qa, limit, factor, na))
        b[j] = as_item_of(b, linear_value(qb, limit, factor, nb))
        c[j] = as_item_of(c, linear_value(qc, limit, factor, nc))
        d[j] = as_item_of(d, linear_value(qd, limit, factor, nd))


@serial
def _decode_lane(words, start, stop, norms, block, out, shift, mask, offset, limit, factor):
    at = start
    while at < stop:
        end = min(stop, (at // block + 1) * block)
        norm = norm_or_nan(norms[at // block])
        piece = words[at - start : end - start]
        _decode1(piece, out[at:end], norm, shift, mask, offset, limit, factor)
        at = end


@serial
def _decode_tile(words, norms, block, out, tile, bits, count, offset, limit, factor):
    start = tile * count * RUN
    stop = min(out.size, start + count * RUN)
    words = words[tile * RUN : min((tile + 1) * RUN, words.size)]
    by_four = count // 4 * 4 if stop - start == count * RUN else 0
    mask = u32((1 << bits) - 1)
    step = min(block, RUN)
    for lane in range(0, by_four, 4):
        for at in range(0, RUN, step):
            a = start + lane * RUN + at
            b, c, d = a + RUN, a + 2 * RUN, a + 3 * RUN
            near = (
                norm_or_nan(norms[a // block]),
                norm_or_nan(norms[b // block]),
                norm_or_nan(norms[c // block]),
                norm_or_nan(norms[d // block]),
            )
            _decode4(
                words[at : at + step],
                out[a : a + step],
                out[b : b + step],
                out[c : c + step],
                out[d : d + step],
                near,
                u32(bits * lane),
                u32(bits),
                mask,
                offset,
                limit,
                factor,
            )
    for lane in range(by_four, count):
        a = start + lane * words.size
        b = min(stop, a + words.size)
        _decode_lane(words, a, b, norms, block, out, u32(bits * lane), mask, offset, limit, factor)


@serial
def _decode_serial(words, norms, block, out, low, high, bits, count, offset, limit, factor):
    for tile in range(low, high):
        _decode_tile(words, norms, block, out, tile, bits, count, offset, limit, factor)


@parallel
def _decode_parallel(words, norms, block, out, low, high, bits, count, offset, limit, factor):
    group = max(1, CHUNK // (count * RUN))
    for task in prange(0, -(-(high - low) // group)):
        for tile in range(low + task * group, min(high, low + (task + 1) * group)):
            _decode_tile(words, norms, block, out, tile, bits, count, offset, limit, factor)
