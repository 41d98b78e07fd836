"""Launching the kernels: from a configuration and device arrays to grids and arguments.

`Launcher` knows neither framework nor driver. It is given ``run(kernel, blocks, threads,
*arguments)``, which launches on the framework's current stream (or simulates, or interprets), and
``empty(count, dtype)``, which takes memory from the framework's allocator. Arrays are flat and
contiguous, with ``size``, ``dtype`` and an address.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod_gqsgd import lanes, norms
from horovod_gqsgd.codecs import exponential as levels_of
from horovod_gqsgd.codecs.exponential import UNIT, Levels
from horovod_gqsgd.codecs.linear import LANES, fraction_bits, level_count
from horovod_gqsgd.config import CEILING, Config
from horovod_gqsgd.cuda_kernels import exponential, groups, linear, norm, prepare, reduce
from horovod_gqsgd.cuda_kernels.draws import ROW
from horovod_gqsgd.dither import fnv1a64
from horovod_gqsgd.reductions import tree

u32, i32, i64, f32 = np.uint32, np.int32, np.int64, np.float32

#: Blocks of a grid at most; threads go on to further elements from there.
GRID = 2**16


def address(array: Any) -> int:
    """Where an array begins."""
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    return array.__cuda_array_interface__["data"][0]


def aligned(array: Any) -> bool:
    """Whether four elements of ``array`` at a multiple of four are one vector load."""
    return address(array) % (4 * array.dtype.itemsize) == 0


def block_shift(block: int | None) -> np.int64:
    """``element >> shift`` is the norm block of an element; 63: one for the tensor."""
    return i64(63 if block is None else block.bit_length() - 1)


def key_count(size: int) -> int:
    """Words of the keys of a tensor with ``size`` elements: π(rank), a row for each 2^32."""
    return 1 + ROW * (max(size - 1, 0) // 2**32 + 1)


@functools.cache
def _strata(n: int) -> tuple[np.uint32, np.uint32, np.uint32]:
    """n, width of a stratum, log2 of n; the last is for powers of two."""
    return u32(n), u32((2**32 // n) & 0xFFFFFFFF), u32(n.bit_length() - 1)


def _rounding(rounding: str, n: int) -> str:
    if rounding == "independent" or n == 1:
        return "independent"
    return "correlated" if n & (n - 1) else "binary"


@functools.cache
def tree_of(n: int) -> np.ndarray:
    """The tree of `reduce.pairwise` over n rows, int32, as the kernel reads it."""
    if n > 2 ** (reduce.DEPTH - 1):
        raise ValueError(f'reduction="pairwise" takes up to 32768 ranks on a GPU, not {n}')
    nodes = tree(n)
    ends = np.bincount([node.middle + node.right - 1 for node in nodes], minlength=n)
    full = np.array([(node.left + node.right) << UNIT for node in nodes], f32)
    words = np.zeros((len(nodes), reduce.NODE), i32)
    words[:, :3] = np.array([[k.middle, k.left, k.right] for k in nodes]).reshape(-1, 3)
    words[:, 3] = levels_of.scale_for(full).view(i32)
    return np.concatenate([ends.astype(i32), words.reshape(-1)])


@dataclass
class Launcher:
    """The operations of a codec as ``rank`` of ``n`` workers, on device arrays."""

    config: Config
    rank: int
    n: int
    run: Callable[..., None]
    empty: Callable[[int, Any], Any]

    def _each(self, kernel: Callable, count: int, threads: int, *arguments: Any) -> None:
        """Launch with a thread for each of ``count``; nothing to do is no launch."""
        if count:
            self.run(kernel, min(-(-count // threads), GRID), threads, *arguments)

    def write_header(self, head: Any, fingerprint: int, step: int, roll: int = -1) -> None:
        """Fill the int32 ``head`` of a norm vector, with a 1 at index ``roll`` and zeros behind."""
        self._begin(head, i32(fingerprint), i32(CEILING - fingerprint), i32(step), i64(roll))

    def _begin(self, head: Any, *words: Any) -> None:
        self._each(prepare.header(), head.size, prepare.THREADS, head, *words)

    def local_norms(self, x: Any, out: Any) -> None:
        """The contribution of this rank, as `norms.local`; ``out`` of maxima must hold zeros."""
        q, p, block = self.config.q, self.config.p, self.config.block
        each = 1
        if q == norms.INF:
            reduced = out
            if p != norms.INF:
                reduced = self.empty(out.size, np.int32)
                self._begin(reduced, i32(0), i32(0), i32(0), i64(-1))
            self._maxima(x, reduced)
        else:
            unit = min(block or 2**63, norms.SUM_UNIT)
            each = -(-(block or max(x.size, 1)) // unit)
            reduced = self.empty(-(-x.size // unit), np.float64)
            threads = reduced.size * norms.SUM_LANES
            shift = i64(unit.bit_length() - 1)
            self._each(norm.total(q), threads, norm.THREADS, x, reduced, shift)
        if reduced is not out:
            self.contribute(reduced, out, each)

    def contribute(self, reduced: Any, out: Any, each: int) -> None:
        """``out`` from maxima, or from sums of ``each`` units a norm; see `norms.power`."""
        kernel = norm.contribution(self.config.q, self.config.p)
        self._each(kernel, out.size, norm.THREADS, reduced, out, i64(each))

    def _maxima(self, x: Any, out: Any) -> None:
        shift = block_shift(self.config.block)
        arguments = x, out, i64(aligned(x)), shift
        self._each(norm.maximum(), -(-x.size // norm.EACH), norm.THREADS, *arguments)

    def prepare(self, reduced: Any, head: Any, name: str, size: int) -> tuple[Any, Any]:
        """Norms and keys of a tensor, from its part of the exchanged vector and the header."""
        joined = self.empty(reduced.size, np.float32)
        keys = self.empty(key_count(size), np.uint32)
        digest = fnv1a64(name)
        stream = u32(self.config.seed), u32(digest & 0xFFFFFFFF), u32(digest >> 32)
        kernel = prepare.prepare(self.config.p)
        arguments = reduced, head, joined, keys, *stream, u32(self.rank), u32(self.n)
        self._each(kernel, max(reduced.size, 1), prepare.THREADS, *arguments)
        return joined, keys

    def encode(self, x: Any, joined: Any, keys: Any, payload: Any) -> None:
        """Quantise ``x`` into its payload, by the kernels of the codec."""
        getattr(self, f"encode_{self.config.levels}")(x, joined, keys, payload)

    def decode(self, payload: Any, joined: Any, out: Any, factor: float) -> None:
        """The mean times ``factor``, by the kernels of the codec."""
        getattr(self, f"decode_{self.config.levels}")(payload, joined, out, factor)

    def encode_linear(self, x: Any, joined: Any, keys: Any, words: Any) -> None:
        """Quantise ``x`` into int32 ``words``."""
        bits, s = self.config.bits, level_count(self.config.bits, self.n)
        fraction = fraction_bits(s)
        kernel = linear.encode(_rounding(self.config.rounding, self.n))
        scheme = i32(s << fraction), u32(fraction), *_strata(self.n)
        self._tiles(kernel, x, words, (x, joined, keys, words), bits, scheme)

    def decode_linear(self, words: Any, joined: Any, out: Any, factor: float) -> None:
        """The mean times ``factor`` from summed ``words``."""
        bits, limit = self.config.bits, level_count(self.config.bits, self.n) * self.n
        offset = sum(limit << bits * lane for lane in range(LANES[bits])) & 0xFFFFFFFF
        scheme = u32(offset), i32(limit), f32(factor)
        self._tiles(linear.decode(), out, words, (words, joined, out), bits, scheme)

    def _tiles(
        self, kernel: Callable, gradient: Any, words: Any, arrays: tuple, bits: int, scheme: tuple
    ) -> None:
        full = gradient.size // (LANES[bits] * lanes.TILE_WORDS)
        vector_tiles = full if aligned(gradient) and aligned(words) else 0
        where = i64(vector_tiles), block_shift(self.config.block), u32(bits), i64(LANES[bits])
        tiles = -(-words.size // lanes.TILE_WORDS)
        self._each(kernel, tiles * linear.THREADS, linear.THREADS, *arrays, *where, *scheme)

    def encode_exponential(self, x: Any, joined: Any, keys: Any, packed: Any) -> None:
        """Quantise ``x`` into ``packed`` codes."""
        levels = self.config.code
        kernel = exponential.encode(levels.octave, _rounding(self.config.rounding, self.n))
        where = i64(aligned(x)), block_shift(self.config.block)
        arguments = x, joined, keys, packed, *where, *_scheme(levels), *_strata(self.n)
        self._groups(kernel, packed, *arguments)

    def decode_exponential(self, packed: Any, joined: Any, out: Any, factor: float) -> None:
        """The mean times ``factor`` from reduced codes."""
        levels = self.config.code
        where = i64(aligned(out)), block_shift(self.config.block)
        scheme = i64(levels.bits), i32(levels.count), f32(factor)
        kernel = exponential.decode(levels.octave)
        self._groups(kernel, packed, packed, joined, out, *where, *scheme)

    def reduce(
        self, rows: Any, stride: int, packed: Any, keys: Any, size: int, start: int, nodes: Any
    ) -> None:
        """Combine ``size`` codes of n packed ``rows``, ``stride`` bytes apart.

        ``start`` is the tensor's index of the first code; ``nodes`` is what `tree_of` gives, on
        the device, and serves ``"pairwise"``; every other reduction here is ``"exact"``.
        """
        levels = self.config.code
        bits, *scheme = _scheme(levels)
        where = i64(self.n), i64(stride), i64(start), i64(size), bits
        if self.config.reduction != "pairwise":
            scale = levels_of.scale_for(np.array([self.n << UNIT], f32))[0]
            arguments: tuple = rows, packed, keys, *where, scale, *scheme
            self._groups(reduce.exact(levels.octave), packed, *arguments)
        else:
            arguments = rows, packed, keys, nodes, *where, *scheme
            self._groups(reduce.pairwise(levels.octave), packed, *arguments)

    def unpack(self, packed: Any, codes: Any) -> None:
        """Packed codes to one a byte."""
        self._groups(groups.unpack(), packed, packed, codes, i64(self.config.bits))

    def pack(self, codes: Any, packed: Any) -> None:
        """The inverse of `unpack`, with zeros up to a whole group."""
        self._groups(groups.pack(), packed, codes, packed, i64(self.config.bits))

    def dither(self, words: Any, keys: Any, start: int) -> None:
        """The reduction's dither of the elements from ``start`` on."""
        self._each(reduce.dither(), words.size, reduce.THREADS, words, keys, i64(start))

    def _groups(self, kernel: Callable, packed: Any, *arguments: Any) -> None:
        self._each(kernel, packed.size // self.config.bits, groups.THREADS, *arguments)


def _scheme(levels: Levels) -> tuple[np.int64, np.int32, np.uint32, np.float32]:
    return i64(levels.bits), i32(levels.count), levels.smallest_bits, levels.share_scale
