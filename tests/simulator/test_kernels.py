"""Every CUDA kernel in Numba's simulator gives the bits of the specification."""

import dataclasses

import numpy as np
import pytest

from horovod_gqsgd import lanes
from horovod_gqsgd.codecs import linear
from horovod_gqsgd.codecs.linear import LANES
from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels import launch
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.lanes import TILE_WORDS as RUN
from tests.cuda_code.cases import check
from tests.cuda_code.device import name_of
from tests.cuda_code.programs import catalogue
from tests.unit import cuda_checks as checks
from tests.unit.test_kernels import DTYPES, of_type, sample

DEVICE = checks.Simulator()
BASES = [2, 2**0.5, 2**0.25]
ROUNDINGS = [("independent", 2), ("correlated", 2), ("correlated", 3)]


class Recording(checks.Simulator):
    """Keeps how many blocks of threads each kernel of the catalogue was given."""

    def __init__(self) -> None:
        self.blocks: dict[str, int] = {}

    def launcher(self, config, rank, n):
        plain = super().launcher(config, rank, n)

        def run(kernel, blocks, threads, *arguments):
            name = name_of(kernel, arguments)
            self.blocks[name] = max(blocks, self.blocks.get(name, 0))
            plain.run(kernel, blocks, threads, *arguments)

        return dataclasses.replace(plain, run=run)


#: Elements, and elements of a norm, for more than one block of threads.
SEVERAL = {
    "norm.maximum": (4099, 1024),
    "norm.total": (8193, 1024),
    "norm.contribution": (257, 1024),
    "prepare.header": (257, 1024),
    "prepare.prepare": (257 * 128, 128),
    "linear": (4099, 1024),
    "exponential": (2057, 1024),
    "reduce": (2057, 1024),
    "groups": (2057, 1024),
}


@pytest.mark.parametrize("name", catalogue())
def test_every_kernel(name):
    """Sizes 0, 1, odd, and several blocks of threads; the kernel of this name is what ran."""
    operation = name.split()[0]
    several = SEVERAL.get(operation) or SEVERAL[operation.split(".")[0]]
    for size, block in [(0, 1024), (1, 1024), (7, 1024), several]:
        device = Recording()
        check(name, device, size, block)
        assert name in device.blocks or size == 0
    assert device.blocks[name] > 1


@pytest.mark.parametrize(("size", "roll"), [(3, -1), (6, 4), (1000, -1)])
def test_header(size, roll):
    checks.check_header(DEVICE, size, roll)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [128, 1024, 8192, None])
def test_maxima(dtype, block):
    for size in (1023, 4500):
        checks.check_norms(DEVICE, sample(size, dtype), Config(block=block))


@pytest.mark.parametrize("q", [1, 2, "inf"])
@pytest.mark.parametrize("p", [1, 2, "inf"])
def test_norms(q, p):
    for size, block in ((0, 1024), (1, None), (2500, 128), (2500, 1024), (66_000, None)):
        if size < 66_000 or q == p == 2:
            checks.check_norms(DEVICE, sample(size), Config(norm=(q, p), block=block))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, 1500, 2047, 2049])
def test_maxima_see_bad_elements(bad, place):
    x = sample(2050)
    x[place] = bad
    checks.check_norms(DEVICE, x, Config())


@pytest.mark.parametrize(("rounding", "n"), ROUNDINGS)
def test_linear(rounding, n):
    checks.check_linear(DEVICE, sample(4096), Config(rounding=rounding), n, n - 1)


@pytest.mark.parametrize("bits", LANES)
def test_linear_of_every_width(bits):
    size = LANES[bits] * 1024 + 77 if bits > 4 else 1001
    checks.check_linear(DEVICE, sample(size), Config(bits=bits), 2, 0)


@pytest.mark.parametrize("block", [128, 2048, None])
def test_linear_blocks(block):
    checks.check_linear(DEVICE, sample(4097), Config(block=block), 2, 1)


@pytest.mark.parametrize("norm", [1, 2, (2, "inf")])
def test_linear_norms(norm):
    checks.check_linear(DEVICE, sample(1500), Config(norm=norm), 2, 1)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("rounding", "n"), ROUNDINGS)
def test_exponential(base, rounding, n):
    config = Config(levels="exponential", base=base, rounding=rounding)
    checks.check_exponential(DEVICE, sample(2048), config, n, n - 1)


@pytest.mark.parametrize("bits", range(2, 9))
def test_exponential_of_every_width(bits):
    config = Config(levels="exponential", bits=bits)
    checks.check_exponential(DEVICE, sample(1001), config, 2, 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_blocks_become_nan(bad, dtype):
    x = np.ones(2100, np.float32)
    x[1030] = bad
    x[1500] = -bad
    x = of_type(x, dtype)
    checks.check_linear(DEVICE, x, Config(), 2, 1)
    checks.check_exponential(DEVICE, x, Config(levels="exponential"), 2, 1)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("reduction", ["exact", "pairwise"])
def test_reduce(base, reduction):
    for bits, n, size in ((8, 2, 300), (8, 7, 9), (3, 3, 300), (8, 1, 1), (4, 20, 40)):
        config = Config(levels="exponential", bits=bits, base=base, reduction=reduction)
        checks.check_reduce(DEVICE, config, n, size, 1000)


@pytest.mark.parametrize("bits", [3, 8])
def test_registered_reductions(bits):
    for size in (1, 300):
        checks.check_registered(DEVICE, bits, size, 1000)


@pytest.mark.parametrize("vector", [True, False])
def test_a_tile_across_element_2_to_the_32(vector, monkeypatch):
    """Indices are 64-bit, and the keys of the dither change inside the tile.

    Arrays of stride 0 or untouched zeros take no memory; of the grid only the one block is run.
    """
    from numba.cuda.simulator import kernel as simulator
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    bits, n = 5, 2
    tile = 2**32 // (LANES[bits] * RUN)
    start, stop = tile * LANES[bits] * RUN, (tile + 1) * LANES[bits] * RUN
    assert start < 2**32 < stop
    launcher = DEVICE.launcher(Config(bits=bits, block=None), 1, n)
    one, head = np.ones(1, np.float32), np.array([0, 0, checks.STEP], np.int32)
    joined, keys = launcher.prepare(one.view(np.int32), head, checks.NAME, stop)

    value = np.full(1, 0.7, np.float32)
    x = FakeCUDAArray(np.lib.stride_tricks.as_strided(value, (stop,), (0,)))
    words = np.zeros((tile + 1) * RUN, np.int32)
    points = np.ndindex
    monkeypatch.setattr(
        simulator.np, "ndindex", lambda *d: [(tile, 0, 0)] if d[0] == launch.GRID else points(*d)
    )
    monkeypatch.setattr(launch, "aligned", lambda array: vector)
    launcher.encode_linear(x, joined, keys, FakeCUDAArray(words))
    s = linear.level_count(bits, n)
    dither = Dither(0, checks.STEP, checks.NAME).correlated(1, n, start, stop - start)
    expected = lanes.pack(linear.encode(np.repeat(value, stop - start), one, s, dither), bits)
    assert np.array_equal(words[tile * RUN :], expected)
