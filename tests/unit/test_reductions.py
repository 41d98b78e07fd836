import numpy as np
import pytest

from horovod_gqsgd import reductions
from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.reductions import exact, get_reduction, pairwise, register_reduction, tree
from tests.unit.checks import ROUNDINGS, check_below, check_unbiased, words

REDUCTIONS = {"exact": exact, "pairwise": pairwise}
both = pytest.mark.parametrize("name", REDUCTIONS)
LEVELS = [Levels(8, 1), Levels(8, 2), Levels(8, 4), Levels(4, 1), Levels(3, 1), Levels(2, 1)]
every_level_set = pytest.mark.parametrize("levels", LEVELS, ids=repr)
TRIALS = 8192


def reduced(name: str, levels: Levels, values: np.ndarray, rounding: str, step=0) -> np.ndarray:
    """Decoded result of encoding the rows of ``values`` and reducing them."""
    n, count = values.shape
    dither = words(rounding, n, count, step)
    codes = np.stack([levels.encode(row, word) for row, word in zip(values, dither, strict=True)])
    final = Dither(0, step, "weight").reduction(0, count)
    return levels.decode(REDUCTIONS[name](codes, levels, final))


@both
@every_level_set
@pytest.mark.parametrize("n", [*range(1, 10), 64])
def test_the_maximum_on_all_ranks_stays_the_maximum(name, levels, n):
    """And so do all powers of two that the ranks share: nothing overflows into zero."""
    codes = np.arange(2**levels.bits, dtype=np.uint8)
    index = codes & np.uint8(levels.count)
    whole = (index - np.uint8(1)) % levels.octave == 0  # other levels are rounded as integers
    codes = codes[(index > 0) & (index <= 40 * levels.octave) & whole]
    assert {1, levels.count + 2} <= set(codes.tolist())
    rows = np.tile(codes, (n, 1))
    for dither in (0, 0x12345678, 0xFFFFFFFF):
        word = np.full(codes.size, dither, np.uint32)
        assert (REDUCTIONS[name](rows, levels, word) == codes).all()


@both
@every_level_set
def test_opposites_cancel_exactly(name, levels):
    positive = np.arange(1, levels.count + 1, dtype=np.uint8)
    rows = np.stack([positive, positive + np.uint8(levels.count + 1)])
    result = REDUCTIONS[name](rows, levels, words("independent", 1, positive.size)[0])
    assert (result == 0).all()


@both
@every_level_set
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_unbiased(name, levels, rounding, n):
    cases = np.random.default_rng(n).uniform(-1, 1, (n, 6)).astype(np.float32)
    cases[:, 0] = 0.7
    cases[:, 1] = np.where(np.arange(n) % 2, -0.6, 0.6)
    result = reduced(name, levels, np.tile(cases, TRIALS), rounding)
    check_unbiased(result.reshape(TRIALS, 6), cases.mean(axis=0, dtype=np.float64))


def bound_identical(name: str, n: int) -> float:
    if name == "exact":
        return 9 / 64 / n + 1 / 8
    decay = n**-0.848
    return (1 - decay) / 4 + decay / 8


def bound_independent(name: str, n: int) -> float:
    return (9 / 8) ** 2 - 1 if name == "exact" else 9 / 8 * n**0.152 - 1


@both
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_variance_of_identical_workers(name, n):
    """Base 2, n = 2^k, relative to the square of the mean, at any place between two levels."""
    worst = 0.0
    for x in np.linspace(0.25, 0.5, 12, dtype=np.float32):
        result = reduced(name, Levels(8, 1), np.full((n, TRIALS), x), "independent")
        worst = max(worst, float(np.square(result.astype(np.float64) - x).mean() / x**2))
    check_below(worst, bound_identical(name, n), TRIALS)


@both
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_variance_of_independent_workers(name, n):
    """Zero-mean workers: error relative to the energy of the true mean."""
    values = np.random.default_rng(n).standard_normal((n, 65_536)).astype(np.float32)
    values /= np.abs(values).max()
    result = reduced(name, Levels(8, 1), values, "independent")
    truth = values.mean(axis=0, dtype=np.float64)
    relative = np.square(result - truth).sum() / np.square(truth).sum()
    check_below(float(relative), bound_independent(name, n), 4096)


@pytest.mark.parametrize(("a", "b"), [(1, 3), (1, 4), (2, 5), (1, 10)])
@pytest.mark.parametrize("sign", [1, -1])
def test_variance_of_one_pairwise_step(a, b, sign):
    """A + B with |A| > |B|: |B|(|A| − |B|) for equal signs, |B|(|A|/2 − |B|) for opposite ones."""
    levels = Levels(8, 1)
    big, small = 2.0 ** (1 - a), 2.0 ** (1 - b)
    codes = np.array([[a], [b if sign > 0 else b + levels.count + 1]], np.uint8).repeat(65_536, 1)
    result = 2 * levels.decode(pairwise(codes, levels, words("independent", 1, 65_536)[0]))
    measured = np.square(result.astype(np.float64) - (big + sign * small)).mean()
    expected = small * (big - small) if sign > 0 else small * (big / 2 - small)
    assert measured == pytest.approx(expected, rel=0.06)


def test_exact_rounds_once_and_does_not_mind_the_order():
    levels = Levels(8, 4)
    codes = np.random.default_rng(0).integers(0, 256, (7, 999)).astype(np.uint8)
    codes[codes == 128] = 0
    dither = words("independent", 1, 999)[0]
    first = exact(codes, levels, dither)
    assert (exact(codes[::-1], levels, dither) == first).all()
    mean = levels.decode(codes).astype(np.float64).mean(axis=0)
    around = np.abs(levels.decode(first) - mean)
    gap = np.maximum(np.abs(mean) * (2**0.25 - 1) * 1.001, levels.values[-1])
    assert (around <= gap).all()


@pytest.mark.parametrize("n", range(1, 12))
def test_tree_has_every_leaf_once(n):
    weight = dict.fromkeys(range(n), 1)
    for low, middle, left, right in tree(n):
        assert (weight[low], weight[middle]) == (left, right)
        assert left - right in (0, 1)
        weight[low] += weight.pop(middle)
    assert weight == {0: n}


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(reductions, "_registry", dict(reductions._registry))


def median(codes, levels, dither):
    return levels.encode(np.median(levels.decode(codes), axis=0), dither)


def test_register(registry):
    register_reduction("median", median, version=3)
    assert get_reduction("median").reduce is median
    assert get_reduction("median").identity == "median=tests.unit.test_reductions.median@3"
    with pytest.raises(ValueError, match="'median' is taken by median=tests"):
        register_reduction("median", median)
    with pytest.raises(ValueError, match="'exact' is taken"):
        register_reduction("exact", median)


@pytest.mark.parametrize(("name", "function"), [("", median), (3, median), ("x", None)])
def test_register_bad_input(registry, name, function):
    with pytest.raises(ValueError, match="is not allowed"):
        register_reduction(name, function)


def test_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"'mode' is not registered \(known: exact, pairwise\)"):
        get_reduction("mode")
