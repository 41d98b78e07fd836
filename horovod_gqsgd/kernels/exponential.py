"""Exponential levels on the CPU: encode and pack in one pass, unpack and decode in one pass."""

import numpy as np
from numba import prange

from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.kernels.bases import base_of, code_of, scale_for, value_of
from horovod_gqsgd.kernels.casts import as_float32, as_item_of, load_word, store_word, view
from horovod_gqsgd.kernels.draws import draw, plan, row
from horovod_gqsgd.kernels.jit import CHUNK, SERIAL, parallel, serial, wide
from horovod_gqsgd.kernels.norm import all_zero
from horovod_gqsgd.kernels.scalars import f32, norm_or_nan, spread, squeeze, u32, u64

u16 = np.uint16

#: Codes that are in the first cache, one a byte, between a tensor and its packed form.
STAGE = 4096


def encode(
    x: np.ndarray,
    norms: np.ndarray,
    block: int | None,
    levels: Levels,
    packed: np.ndarray,
    dither: Dither,
    rounding: str,
    rank: int,
    n: int,
    start: int = 0,
    stop: int | None = None,
    own: np.ndarray | None = None,
) -> None:
    """Quantise ``x`` (flat, contiguous) against its block ``norms`` into ``packed`` codes.

    With ``start``, a multiple of eight, and ``stop`` only those elements. Blocks whose norm in
    ``own``, this rank's alone, is 0 are not read.
    """
    kind, keys = plan(dither, rounding, rank, n, x.size)
    stop = x.size if stop is None else stop
    run = _encode_serial if stop - start < SERIAL else _encode_parallel
    blocks = (norms, norms if own is None else own, block or max(x.size, 1))
    run(view(x), *blocks, packed, start, stop, base_of(levels), keys, kind)


def decode(
    packed: np.ndarray,
    norms: np.ndarray,
    block: int | None,
    levels: Levels,
    out: np.ndarray,
    factor: float = 1.0,
    start: int = 0,
    stop: int | None = None,
) -> None:
    """Turn ``packed`` codes into ``level·factor·norm``, in ``out``."""
    stop = out.size if stop is None else stop
    run = _decode_serial if stop - start < SERIAL else _decode_parallel
    part = (norms, block or max(out.size, 1), view(out), start, stop)
    run(packed, *part, base_of(levels), f32(factor))


@serial
def pack(codes, packed, bits):
    """Codes, one a byte and a multiple of eight of them, to ``bits`` bits each."""
    if bits == 4:  # two to a byte, which makes vectors
        pairs = codes.view(np.uint16)
        for j in range(pairs.size):
            packed[j] = np.uint8(u16(pairs[j] | u16(pairs[j] >> u16(4))))
        return
    eights = codes.view(np.uint64)
    whole = _whole_words(eights.size, bits)
    for group in range(whole):  # the zeros above its codes make way for the next group
        store_word(packed, group * bits, squeeze(eights[group], u64(bits)))
    for group in range(whole, eights.size):
        word = squeeze(eights[group], u64(bits))
        for byte in range(bits):
            packed[group * bits + byte] = np.uint8(u64(word >> u64(8 * byte)) & u64(255))


@serial
def unpack(packed, codes, bits):
    """The inverse of `pack`."""
    if bits == 4:
        pairs = codes.view(np.uint16)
        for j in range(packed.size):
            pair = u16(packed[j])
            pairs[j] = u16(u16(pair | u16(pair << u16(4))) & u16(0x0F0F))
        return
    eights = codes.view(np.uint64)
    groups = packed.size // bits
    whole = _whole_words(groups, bits)
    for group in range(whole):
        eights[group] = spread(load_word(packed, group * bits), u64(bits))
    for group in range(whole, groups):
        word = u64(0)
        for byte in range(bits):
            word = u64(word | u64(u64(packed[group * bits + byte]) << u64(8 * byte)))
        eights[group] = spread(word, u64(bits))


@serial
def _whole_words(groups, bits):
    """How many groups have eight bytes from their first one on, before the last group ends."""
    return max(0, (groups * bits - 8) // bits + 1)


@serial
def _encode_piece(x, scale, codes, first, key, kind, base):
    wide()
    k0, k1, k2, k3 = key
    for j in range(x.size):
        random = draw(kind, u32(first + u32(j)), k0, k1, k2, k3)
        codes[j] = code_of(base, as_float32(x[j]), scale, random)


@serial
def _decode_piece(codes, out, norm, factor, base):
    for j in range(out.size):
        out[j] = as_item_of(out, f32(f32(value_of(base, codes[j]) * factor) * norm))


@serial
def _encode_codes(x, start, stop, norms, own, block, codes, base, keys, kind):
    """Codes of the elements start … stop − 1, in pieces that share a norm and a key."""
    at = start
    while at < stop:
        end = min(stop, (at // block + 1) * block, ((at >> 32) + 1) << 32)
        piece = codes[at - start : end - start]
        if own[at // block] == f32(0) or all_zero(x[at:end]):  # zeros whatever the dither
            piece[:] = 0
        else:
            scale = scale_for(norms[at // block])
            _encode_piece(x[at:end], scale, piece, u32(at), row(keys, at), kind, base)
        at = end


@serial
def _decode_codes(codes, start, stop, norms, block, out, factor, base):
    at = start
    while at < stop:
        end = min(stop, (at // block + 1) * block)
        norm = norm_or_nan(norms[at // block])
        _decode_piece(codes[at - start : end - start], out[at:end], norm, factor, base)
        at = end


@serial
def _encode_range(x, start, stop, norms, own, block, packed, base, keys, kind):
    if base.bits == 8:
        _encode_codes(x, start, stop, norms, own, block, packed[start:stop], base, keys, kind)
        packed[stop : -(-stop // 8) * 8] = 0
        return
    stage = np.empty(STAGE, np.uint8)
    for at in range(start, stop, STAGE):
        end = min(stop, at + STAGE)
        padded = -(-(end - at) // 8) * 8
        stage[end - at : padded] = 0
        _encode_codes(x, at, end, norms, own, block, stage, base, keys, kind)
        pack(stage[:padded], packed[at // 8 * base.bits :], base.bits)


@serial
def _decode_range(packed, start, stop, norms, block, out, factor, base):
    if base.bits == 8:
        _decode_codes(packed[start:stop], start, stop, norms, block, out, factor, base)
        return
    stage = np.empty(STAGE, np.uint8)
    for at in range(start, stop, STAGE):
        end = min(stop, at + STAGE)
        groups = -(-(end - at) // 8)
        first = at // 8 * base.bits
        unpack(packed[first : first + groups * base.bits], stage, base.bits)
        _decode_codes(stage, at, end, norms, block, out, factor, base)


@serial
def _encode_serial(x, norms, own, block, packed, start, stop, base, keys, kind):
    _encode_range(x, start, stop, norms, own, block, packed, base, keys, kind)


@parallel
def _encode_parallel(x, norms, own, block, packed, start, stop, base, keys, kind):
    for task in prange(0, -(-(stop - start) // CHUNK)):
        low = start + task * CHUNK
        high = min(stop, low + CHUNK)
        _encode_range(x, low, high, norms, own, block, packed, base, keys, kind)


@serial
def _decode_serial(packed, norms, block, out, start, stop, base, factor):
    _decode_range(packed, start, stop, norms, block, out, factor, base)


@parallel
def _decode_parallel(packed, norms, block, out, start, stop, base, factor):
    for task in prange(0, -(-(stop - start) // CHUNK)):
        low = start + task * CHUNK
        _decode_range(packed, low, min(stop, low + CHUNK), norms, block, out, factor, base)
