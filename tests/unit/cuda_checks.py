"""What the CUDA kernels must give, bit for bit, whoever runs them: simulator, interpreter or GPU.

Every check takes a ``device``: ``device.launcher(config, rank, n)``, and ``device.array(numpy)``
and ``device.numpy(array)`` there and back.
"""

from typing import Any, Protocol

import numpy as np

from horovod_gqsgd import codes as codes_of
from horovod_gqsgd import lanes, norms
from horovod_gqsgd.codecs import exponential, linear
from horovod_gqsgd.config import CEILING, Config
from horovod_gqsgd.cuda_kernels.launch import Launcher, tree_of
from horovod_gqsgd.dither import REDUCTION, SHARED, Dither, place
from horovod_gqsgd.kernels.casts import view
from tests.unit.test_kernels import rounded_to, same, sample

NAME, STEP = "layer.weight", 11


class Device(Protocol):
    def launcher(self, config: Config, rank: int, n: int) -> Launcher: ...
    def array(self, values: np.ndarray) -> Any: ...
    def numpy(self, array: Any) -> np.ndarray: ...


class Simulator:
    """NumPy arrays, in which the CUDA simulator works in place."""

    def launcher(self, config: Config, rank: int, n: int) -> Launcher:
        from numba import cuda

        def run(kernel, blocks, threads, *arguments):
            cuda.jit(kernel)[blocks, threads](*arguments)

        return Launcher(config, rank, n, run, np.empty)

    def array(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def numpy(self, array: np.ndarray) -> np.ndarray:
        return array


def empty(device: Device, size: int, dtype: Any) -> Any:
    """An array full of what nobody wants to see in a result."""
    return device.array(np.full(size * np.dtype(dtype).itemsize, 0x55, np.uint8).view(dtype))


def prepared(device: Device, launcher: Launcher, x: np.ndarray) -> tuple[Any, Any, np.ndarray]:
    """Norms and keys as after an exchange among ranks that all have ``x``; the norms in NumPy."""
    config = launcher.config
    sent = norms.local(x, config.q, config.p, config.block)
    head = device.array(np.array([0, CEILING, STEP], np.int32))
    joined, keys = launcher.prepare(device.array(sent), head, NAME, x.size)
    expected = norms.joined(sent, config.p)
    assert same(device.numpy(joined), expected)
    dither = Dither(config.seed, STEP, NAME)
    mine, shared, reduction = (dither.keys(who) for who in (launcher.rank, SHARED, REDUCTION))
    where = place(launcher.rank, launcher.n, *shared[2:])
    pairs = (np.array(who[:2], np.uint32) for who in (mine, shared, reduction))
    wanted = np.concatenate([[where], *(pair ^ pair >> np.uint32([16, 13]) for pair in pairs)])
    wanted = wanted.astype(np.uint32)
    assert same(device.numpy(keys), wanted)
    return joined, keys, norms.spread(expected, x.size, config.block)


def check_prepare(device: Device, x: np.ndarray, config: Config, n: int, rank: int) -> None:
    prepared(device, device.launcher(config, rank, n), x)


def check_header(device: Device, size: int, roll: int) -> None:
    launcher = device.launcher(Config(), 1, 3)
    head = empty(device, size, np.int32)
    launcher.write_header(head, 12345, STEP, roll)
    expected = np.zeros(size, np.int32)
    expected[:3] = 12345, CEILING - 12345, STEP
    if roll >= 0:
        expected[roll] = 1
    assert same(device.numpy(head), expected)


def one_nan(sent: np.ndarray) -> np.ndarray:
    """Every NaN as one and the same: a GPU's has other bits, and means the same to all ranks."""
    if sent.dtype == np.int32:
        return np.minimum(sent, np.float32(np.inf).view(np.int32) + np.int32(1))
    return np.where(np.isnan(sent), np.nan, sent)


def check_norms(device: Device, x: np.ndarray, config: Config) -> None:
    expected = norms.local(x, config.q, config.p, config.block)
    out = device.array(np.zeros_like(expected))
    device.launcher(config, 0, 2).local_norms(device.array(view(x)), out)
    assert same(one_nan(device.numpy(out)), one_nan(expected))


def check_contribution(device: Device, config: Config, count: int, each: int) -> None:
    """Of ``count`` norms, from ``each`` units where they are sums."""
    x = np.abs(sample(count * each))
    if config.q == "inf":
        reduced, sums = (x[:count].view(np.int32),) * 2
    else:
        reduced, sums = x.astype(np.float64), np.zeros(count)
        for units in reduced.reshape(count, each).T:
            sums += units
    expected = norms.power(sums, config.q, config.p)
    out = empty(device, count, expected.dtype)
    launcher = device.launcher(config, 0, 2)
    launcher.contribute(device.array(reduced), out, each)
    assert same(device.numpy(out), expected)


def check_linear(device: Device, x: np.ndarray, config: Config, n: int, rank: int) -> None:
    launcher = device.launcher(config, rank, n)
    joined, keys, each = prepared(device, launcher, x)
    s = linear.level_count(config.bits, n)
    dither = getattr(Dither(config.seed, STEP, NAME), config.rounding)(rank, n, 0, x.size)
    expected = lanes.pack(linear.encode(norms.as_float32(x), each, s, dither), config.bits)
    words = empty(device, expected.size, np.int32)
    launcher.encode_linear(device.array(view(x)), joined, keys, words)
    assert same(device.numpy(words), expected)
    total = (expected.astype(np.int64) * n).astype(np.int32)
    mean = linear.decode(lanes.unpack(total, config.bits, x.size, s * n), each, s, n, 0.75)
    out = empty(device, x.size, view(x).dtype)
    launcher.decode_linear(device.array(total), joined, out, 0.75)
    assert same(device.numpy(out), view(rounded_to(mean, x)))


def check_exponential(device: Device, x: np.ndarray, config: Config, n: int, rank: int) -> None:
    launcher, levels = device.launcher(config, rank, n), config.code
    joined, keys, each = prepared(device, launcher, x)
    dither = getattr(Dither(config.seed, STEP, NAME), config.rounding)(rank, n, 0, x.size)
    codes = levels.encode_scaled(norms.as_float32(x), exponential.scale_for(each), dither)
    expected = codes_of.pack(codes, levels.bits)
    packed = empty(device, expected.size, np.uint8)
    launcher.encode_exponential(device.array(view(x)), joined, keys, packed)
    assert same(device.numpy(packed), expected)
    out = empty(device, x.size, view(x).dtype)
    launcher.decode_exponential(packed, joined, out, 0.75)
    mean = exponential.decode(codes, levels, each, 0.75)
    assert same(device.numpy(out), view(rounded_to(mean, x)))


def check_reduce(device: Device, config: Config, n: int, size: int, start: int) -> None:
    launcher, levels = device.launcher(config, 0, n), config.code
    codes = np.random.default_rng(n).integers(0, 2**levels.bits, (n, size)).astype(np.uint8)
    codes[codes == levels.count + 1] = 0
    rows = np.stack([codes_of.pack(row, levels.bits) for row in codes])
    dither = Dither(config.seed, STEP, NAME).reduction(start, size)
    _joined, keys, _each = prepared(device, launcher, np.ones(start + size, np.float32))
    packed = empty(device, rows.shape[1], np.uint8)
    flat, nodes = device.array(rows.reshape(-1)), device.array(tree_of(n))
    launcher.reduce(flat, rows.shape[1], packed, keys, size, start, nodes)
    expected = config.reducer.reduce(codes, levels, dither)
    assert same(device.numpy(packed), codes_of.pack(expected, levels.bits))


def check_registered(device: Device, bits: int, size: int, start: int) -> None:
    """What a user's own reduction is given, and what becomes of its result."""
    config = Config(levels="exponential", bits=bits)
    launcher = device.launcher(config, 0, 2)
    codes = np.random.default_rng(bits).integers(0, 2**bits, size).astype(np.uint8)
    unpacked = empty(device, size, np.uint8)
    launcher.unpack(device.array(codes_of.pack(codes, bits)), unpacked)
    assert same(device.numpy(unpacked), codes)
    packed = empty(device, codes_of.packed_size(size, bits), np.uint8)
    launcher.pack(unpacked, packed)
    assert same(device.numpy(packed), codes_of.pack(codes, bits))
    _joined, keys, _each = prepared(device, launcher, np.ones(start + size, np.float32))
    words = empty(device, size, np.uint32)
    launcher.dither(words, keys, start)
    assert same(device.numpy(words), Dither(config.seed, STEP, NAME).reduction(start, size))
