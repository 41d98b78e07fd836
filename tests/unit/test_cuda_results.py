"""What the compiled CUDA kernels compute, run by the interpreter of tests/ptx, in every respect."""

import numpy as np
import pytest

from horovod_gqsgd import codes as codes_of
from horovod_gqsgd import lanes, norms
from horovod_gqsgd.codecs import exponential, linear
from horovod_gqsgd.codecs.linear import LANES
from horovod_gqsgd.config import Config
from horovod_gqsgd.cuda_kernels import launch, norm
from horovod_gqsgd.dither import Dither
from tests.cuda_code import programs
from tests.cuda_code.cases import check
from tests.cuda_code.device import FarEnd, Interpreter
from tests.cuda_code.programs import catalogue
from tests.ptx import Schedule, Window
from tests.unit import cuda_checks as checks
from tests.unit.test_cuda_code import each_program
from tests.unit.test_kernels import DTYPES, of_type, same, sample

pytestmark = pytest.mark.extended


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    programs.make(catalogue())


@each_program
def test_linear_of_every_width(architecture):
    for bits in LANES:
        x = sample(2 * LANES[bits] * 1024 + 77)
        checks.check_linear(Interpreter(architecture), x, Config(bits=bits), 2, 0)


@each_program
def test_exponential_of_every_width(architecture):
    for bits in range(2, 9):
        config = Config(levels="exponential", bits=bits)
        checks.check_exponential(Interpreter(architecture), sample(3001), config, 2, 1)
        for reduction in ("exact", "pairwise"):
            config = Config(levels="exponential", bits=bits, reduction=reduction)
            checks.check_reduce(Interpreter(architecture), config, 3, 301, 5)
        checks.check_registered(Interpreter(architecture), bits, 301, 5)


@each_program
@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_reductions_of_many_ranks(architecture, n):
    for reduction in ("exact", "pairwise"):
        config = Config(levels="exponential", reduction=reduction)
        checks.check_reduce(Interpreter(architecture), config, n, 100, 1000)


@each_program
@pytest.mark.parametrize("block", [128, 2048, None])
def test_blocks(architecture, block):
    device = Interpreter(architecture)
    for order in ("inf", 1, 2, (2, "inf")):
        checks.check_norms(device, sample(5001), Config(block=block, norm=order))
        checks.check_linear(device, sample(5001), Config(block=block, norm=order), 2, 1)
    config = Config(levels="exponential", block=block)
    checks.check_exponential(device, sample(5001), config, 2, 1)


@each_program
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_blocks_become_nan(architecture, bad, dtype):
    x = np.ones(4100, np.float32)
    x[1030], x[1500] = bad, -bad
    x, device = of_type(x, dtype), Interpreter(architecture)
    checks.check_norms(device, x, Config())
    checks.check_linear(device, x, Config(), 2, 1)
    checks.check_exponential(device, x, Config(levels="exponential"), 2, 1)


class Skewed(Interpreter):
    """Arrays begin one element behind an address that vector loads may use."""

    def array(self, values):
        behind = np.empty(values.size + 1, values.dtype)[1:]
        behind[:] = values
        return behind


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_that_are_not_aligned(dtype):
    """A vector load would be a fault here, as it is on a GPU."""
    device, x = Skewed("80"), sample(8200, dtype)
    assert not launch.aligned(device.array(x))
    checks.check_norms(device, x, Config())
    checks.check_linear(device, x, Config(), 2, 1)
    checks.check_exponential(device, x, Config(levels="exponential", bits=7), 2, 1)


@each_program
@pytest.mark.parametrize("order", ["inf", 1, 2])
def test_no_barrier_is_missing(architecture, order, monkeypatch):
    """The result does not depend on the order in which threads run between two barriers.

    One block of threads goes through the tensor, and uses its shared memory several times.
    """
    monkeypatch.setattr(launch, "GRID", 1)
    for schedule in (Schedule(32, seed=1), Schedule(1, seed=2)):
        device = Interpreter(architecture, schedule)
        checks.check_norms(device, sample(8200), Config(norm=order, block=256))
        checks.check_norms(device, sample(4200), Config(norm=order, block=None))


@pytest.mark.parametrize("name", ["norm.maximum float32", "norm.total 2 float32",
    "linear.encode binary float16", "linear.decode float32", "exponential.encode 4 binary float32",
    "exponential.decode 4 bfloat16", "reduce.exact 4", "reduce.pairwise 2", "prepare.header",
    "reduce.dither", "norm.contribution 2 1", "prepare.prepare inf", "prepare.prepare 2",
    "groups.unpack", "groups.pack"])  # fmt: skip
def test_threads_go_on_where_the_grid_ends(name, monkeypatch):
    monkeypatch.setattr(launch, "GRID", 2)
    size, block = (100_000, 128) if name.startswith("prepare.prepare") else (20_000, 1024)
    check(name, Interpreter("80"), size, block)


# -- beyond 2^31 and 2^32 elements

FIRST, COUNT, BLOCK = 2**32 - 8192, 2 * 8192 + 77, 2**26


def at_the_end(per_block: int) -> FarEnd:
    return FarEnd("80", first=FIRST, size=FIRST + COUNT, each=per_block)


def far_norms(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The contributions of all blocks of a tensor that ends with ``x``, and the norm of each."""
    sent = np.full(-(-(FIRST + COUNT) // BLOCK), np.float32(1).view(np.int32))
    inside = 2**32 - FIRST  # of the last block but one
    sent[-2:] = [norms.local(part, "inf", "inf", None)[0] for part in (x[:inside], x[inside:])]
    each = np.repeat(norms.joined(sent[-2:], "inf"), [inside, COUNT - inside])
    return sent, each


def test_norms_of_the_largest_tensors():
    x = sample(COUNT)
    device = at_the_end(int(norm.CHUNK))
    out = np.zeros(-(-device.size // 1024), np.int32)
    device.launcher(Config(), 0, 2).local_norms(Window(x, FIRST, device.size), out)
    assert not out[: FIRST // 1024].any()
    assert same(out[FIRST // 1024 :], norms.local(x, "inf", "inf", 1024))


@pytest.mark.parametrize("q", [1, 2])
def test_sums_of_the_largest_tensors(q):
    """A block of threads sums eight units, here of 1,024 elements."""
    x, device = sample(COUNT), at_the_end(8 * 1024)
    expected = norms.local(x, q, q, 1024)
    sums, units = np.zeros_like(expected), FIRST // 1024
    arguments = Window(x, FIRST, device.size), Window(sums, units, units + sums.size)
    device.run(norm.total(q), 0, norm.THREADS, *arguments, np.int64(10))
    assert same(sums, expected)


def far_keys(device: FarEnd, launcher: launch.Launcher) -> np.ndarray:
    head = np.array([0, 0, checks.STEP], np.int32)
    return launcher.prepare(np.zeros(1, np.int32), head, checks.NAME, device.size)[1]


@pytest.mark.parametrize("reduction", ["exact", "pairwise"])
def test_reductions_of_the_largest_tensors(reduction):
    """The rows' ends, which are all there is, follow one another."""
    device, n = at_the_end(8 * 256), 3
    config = Config(levels="exponential", reduction=reduction)
    launcher, levels = device.launcher(config, 0, n), config.code
    codes = np.random.default_rng(1).integers(0, 256, (n, COUNT)).astype(np.uint8)
    codes[codes == levels.count + 1] = 0
    rows = np.stack([codes_of.pack(row, 8) for row in codes])
    packed = np.zeros_like(rows[0])
    far_rows = Window(rows.reshape(-1), FIRST, FIRST + rows.size)
    far_packed = Window(packed, FIRST, FIRST + packed.size)
    keys, nodes = far_keys(device, launcher), launch.tree_of(n)
    launcher.reduce(far_rows, packed.size, far_packed, keys, device.size, 0, nodes)
    dither = Dither(0, checks.STEP, checks.NAME).reduction(FIRST, COUNT)
    assert same(packed, codes_of.pack(config.reducer.reduce(codes, levels, dither), 8))


@pytest.mark.parametrize("bits", [5, 8])
def test_groups_of_the_largest_tensors(bits):
    device = at_the_end(8 * 256)
    launcher = device.launcher(Config(levels="exponential", bits=bits), 0, 2)
    codes = np.random.default_rng(bits).integers(0, 2**bits, COUNT).astype(np.uint8)
    expected, start = codes_of.pack(codes, bits), FIRST * bits // 8
    packed, unpacked = np.zeros_like(expected), np.zeros_like(codes)
    far_codes = Window(codes, FIRST, device.size)
    launcher.pack(far_codes, Window(packed, start, start + packed.size))
    assert same(packed, expected)
    far_packed = Window(expected, start, start + packed.size)
    launcher.unpack(far_packed, Window(unpacked, FIRST, device.size))
    assert same(unpacked, codes)


def test_dither_of_the_largest_tensors():
    device, words = at_the_end(256), np.zeros(COUNT, np.uint32)
    launcher = device.launcher(Config(levels="exponential"), 0, 2)
    launcher.dither(Window(words, FIRST, device.size), far_keys(device, launcher), 0)
    assert same(words, Dither(0, checks.STEP, checks.NAME).reduction(FIRST, COUNT))


def test_linear_levels_of_the_largest_tensors():
    x, device = sample(COUNT), at_the_end(4096)
    launcher = device.launcher(Config(block=BLOCK), 1, 3)
    sent, each = far_norms(x)
    head = np.array([0, 0, checks.STEP], np.int32)
    joined, keys = launcher.prepare(sent, head, checks.NAME, device.size)
    s = linear.level_count(8, 3)
    dither = Dither(0, checks.STEP, checks.NAME).correlated(1, 3, FIRST, COUNT)
    expected = lanes.pack(linear.encode(x, each, s, dither), 8)
    words = np.zeros_like(expected)
    far_words = Window(words, FIRST // 4, FIRST // 4 + words.size)
    launcher.encode_linear(Window(x, FIRST, device.size), joined, keys, far_words)
    assert same(words, expected)
    out = np.zeros(COUNT, np.float32)
    launcher.decode_linear(far_words, joined, Window(out, FIRST, device.size), 1.0)
    assert same(out, linear.decode(lanes.unpack(words, 8, COUNT, s * 3), each, s, 3, 1.0))


def test_exponential_levels_of_the_largest_tensors():
    x, device = sample(COUNT), at_the_end(8 * 256)
    config = Config(levels="exponential", block=BLOCK)
    launcher = device.launcher(config, 1, 3)
    sent, each = far_norms(x)
    head = np.array([0, 0, checks.STEP], np.int32)
    joined, keys = launcher.prepare(sent, head, checks.NAME, device.size)
    dither = Dither(0, checks.STEP, checks.NAME).correlated(1, 3, FIRST, COUNT)
    codes = config.code.encode_scaled(x, exponential.scale_for(each), dither)
    expected = codes_of.pack(codes, 8)
    packed = np.zeros_like(expected)
    far_packed = Window(packed, FIRST, FIRST + packed.size)
    launcher.encode_exponential(Window(x, FIRST, device.size), joined, keys, far_packed)
    assert same(packed, expected)
    out = np.zeros(COUNT, np.float32)
    launcher.decode_exponential(far_packed, joined, Window(out, FIRST, device.size), 1.0)
    assert same(out, exponential.decode(codes, config.code, each, 1.0))
