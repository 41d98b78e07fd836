import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod_gqsgd import lanes
from horovod_gqsgd.codecs import linear
from horovod_gqsgd.codecs.linear import LANES, level_count
from tests.unit.checks import (
    ROUNDINGS,
    SIGMAS,
    adversarial,
    check_unbiased,
    words,
)

SIZES = [2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 64]
ONE = np.float32(1)
TRIALS = 4096


def fits(bits: int) -> list[int]:
    return [n for n in SIZES if 2**bits - 1 >= 2 * n]


WIDTHS = [(bits, n) for bits in LANES for n in fits(bits)]


def mean_of(values: np.ndarray, s: int, dither: np.ndarray) -> np.ndarray:
    """Decoded mean of the ranks; ``values`` in units of the step, norm 1."""
    digits = linear.encode((values / s).astype(np.float32), ONE, s, dither)
    return linear.decode(digits.sum(axis=0), ONE, s, len(values))


def test_level_counts_of_the_design():
    table = {
        4: [3, 1], 5: [7, 3, 1], 6: [15, 7, 3, 1], 8: [63, 31, 15, 7, 1],
        10: [255, 127, 63, 31, 7], 16: [16383, 8191, 4095, 2047, 511],
    }  # fmt: skip
    for bits, counts in table.items():
        sizes = (2, 4, 8, 16, 64)[: len(counts)]
        assert [level_count(bits, n) for n in sizes] == counts
    assert level_count(8, 127) == 1
    assert level_count(3, 3) == 1


@pytest.mark.parametrize(
    ("bits", "n", "needed"), [(3, 4, 4), (4, 16, 6), (8, 128, 10), (6, 32, 8), (10, 512, 16)]
)
def test_too_few_bits_name_the_smallest_that_works(bits, n, needed):
    with pytest.raises(ValueError, match=rf"bits={bits} .* {n} workers \(needs at least {needed}"):
        level_count(bits, n)
    assert level_count(needed, n) >= 1


def test_too_many_workers_for_any_width():
    with pytest.raises(ValueError, match=r'no width can.*: use levels="exponential"'):
        level_count(16, 40_000)


@pytest.mark.parametrize("s", [1, 2, 3, 7, 15, 31, 63, 255, 1000, 4095, 16383])
def test_the_norm_is_exactly_s_for_every_dither(s):
    rng = np.random.default_rng(s)
    norm = np.exp2(rng.uniform(-95, 127, 20_000)).astype(np.float32)
    for dither in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF, rng.integers(0, 2**32, norm.size)):
        dither = np.broadcast_to(np.asarray(dither).astype(np.uint32), norm.shape)
        assert (linear.encode(norm, norm, s, dither) == s).all()
        assert (linear.encode(-norm, norm, s, dither) == -s).all()
    assert (linear.decode(np.full(norm.shape, 3 * s), norm, s, 3) == norm).all()


@pytest.mark.parametrize(("bits", "n"), WIDTHS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_unbiased(bits, n, rounding):
    s = level_count(bits, n)
    cases = np.random.default_rng(bits).uniform(-s, s, (n, 7))
    cases[:, 0], cases[:, 1] = 0.5, -0.25
    dither = words(rounding, n, TRIALS * 7)
    means = mean_of(np.tile(cases, TRIALS), s, dither).reshape(TRIALS, 7)
    check_unbiased(means, cases.mean(axis=0) / s)


def formula(cases: np.ndarray, s: int) -> float:
    """Variance of the mean with independent rounding, (Δ²/n²)·Σ f(1−f)."""
    fraction = cases - np.floor(cases)
    return float((fraction * (1 - fraction)).sum()) / len(cases) ** 2 / s**2


def variances(cases: np.ndarray, s: int, draw) -> np.ndarray:
    """Mean squared error at each of 64 steps; correlated rounding draws a permutation a step."""
    values = np.tile(cases, 1024)
    truth = cases.mean() / s
    return np.array(
        [np.square(mean_of(values, s, draw(step)) - truth).mean() for step in range(64)]
    )


def significantly_above(samples: np.ndarray, bound: float) -> bool:
    return samples.mean() - SIGMAS * samples.std() / np.sqrt(samples.size) > bound


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("name", adversarial(2))
def test_variance_formula_and_bound(n, name):
    """Independent: as the formula says, and ≤ Δ²/(4n). Correlated: not above the formula."""
    cases, s = adversarial(n)[name], 7
    expected = formula(cases, s)
    independent = variances(cases, s, lambda step: words("independent", n, 1024, step))
    correlated = variances(cases, s, lambda step: words("correlated", n, 1024, step))
    assert not significantly_above(independent, expected)
    assert not significantly_above(-independent, -expected)
    assert expected <= 1 / (4 * n * s**2)
    assert not significantly_above(correlated, expected)


def test_plain_shifts_of_one_word_would_be_caught():
    """frac(u + i/n), without a permutation, is worse than independent rounding on some data."""
    n, s = 8, 7
    turned = np.arange(n, dtype=np.uint32)[:, None] * np.uint32(2**32 // n)

    def shifted(step: int) -> np.ndarray:
        return words("independent", 1, 1024, step) + turned

    worse = [
        name
        for name, cases in adversarial(n).items()
        if significantly_above(variances(cases, s, shifted), formula(cases, s))
    ]
    assert worse


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16, 64])
def test_correlated_divides_the_variance_of_identical_gradients_by_n(n):
    values = np.tile(np.random.default_rng(0).uniform(-3, 3, 64), (n, TRIALS // 8))
    error = {
        rounding: np.square(
            mean_of(values, 7, words(rounding, n, values.shape[1])) - values[0] / 7
        ).mean()
        for rounding in ROUNDINGS
    }
    assert error["independent"] / error["correlated"] == pytest.approx(n, rel=0.12)


@pytest.mark.parametrize(("n", "gain"), [(4, 1.6), (16, 1.9)])
def test_correlated_gains_on_independent_gaussians(n, gain):
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n, 65_536)) * 2
    errors = {
        rounding: np.square(
            mean_of(values, 31, words(rounding, n, values.shape[1])) - (values / 31).mean(axis=0)
        ).mean()
        for rounding in ROUNDINGS
    }
    assert errors["independent"] / errors["correlated"] > 0.93 * gain


def test_one_key_for_all_ranks_would_be_caught():
    """The formula test has the power to see n equal streams instead of n independent ones."""
    n, s = 4, 7
    same = np.tile(words("independent", 1, TRIALS), (n, 1))
    error = mean_of(np.full((n, TRIALS), 0.3), s, same) - 0.3 / s
    formula = 0.3 * 0.7 / n / s**2
    assert np.mean(error**2) > (n - 1) * formula
    rows = words("independent", n, TRIALS)
    assert all((rows[i] == rows[j]).sum() <= 1 for i in range(n) for j in range(i))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_norm_sends_zero_and_decodes_to_nan(bad):
    x = np.float32([1, bad, -2])
    digits = linear.encode(x, np.float32(bad), 7, words("independent", 1, 3)[0])
    assert digits.tolist() == [0, 0, 0]
    assert np.isnan(linear.decode(digits, np.float32([bad] * 3), 7, 2)).all()


def test_zero_and_denormals_give_exactly_zero():
    x = np.float32([0, -0.0, 1e-45, -1e-40])
    for norm in (np.float32(0), np.float32(2.0**-96), ONE):
        digits = linear.encode(x, norm, 7, np.full(4, 0xFFFFFFFF, np.uint32))
        assert digits.tolist() == [0, 0, 0, 0]


def test_factors():
    total = np.array([3, -2], np.int32)
    once = linear.decode(total, np.float32(2), 7, 4)
    assert linear.decode(total, np.float32(2), 7, 4, factor=4.0).tolist() == (4 * once).tolist()


@pytest.mark.parametrize(("bits", "n"), WIDTHS)
@pytest.mark.parametrize("silent", [0, 1])
def test_lanes_hold_the_sum_of_all_ranks_at_the_maximum(bits, n, silent):
    """±s on every rank, and with a rank that has joined and sends zero words."""
    s = level_count(bits, n)
    size = LANES[bits] * 1024 + LANES[bits] * 3 + 1
    signs = np.random.default_rng(0).choice([-1, 1], size)
    for pattern in (np.ones(size, int), -np.ones(size, int), signs, np.where(signs > 0, 1, 0)):
        digits = (s * pattern).astype(np.int32)
        packed = lanes.pack(digits, bits)
        with np.errstate(over="raise"):
            summed = packed.astype(np.int64) * (n - silent)
        assert np.abs(summed).max() < 2**31  # no rank's partial sum ever overflows
        total = lanes.unpack(summed.astype(np.int32), bits, size, s * n)
        assert (total == digits * (n - silent)).all()


@given(
    bits=st.sampled_from(list(LANES)),
    size=st.integers(0, 20_000),
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 64),
)
@settings(max_examples=150, deadline=None)
def test_lanes_round_trip(bits, size, seed, n):
    if 2**bits - 1 < 2 * n:
        n = 2
    s = level_count(bits, n)
    rows = np.random.default_rng(seed).integers(-s, s + 1, (n, size)).astype(np.int32)
    packed = [lanes.pack(row, bits) for row in rows]
    assert all(len(row) == lanes.word_count(size, bits) for row in packed)
    total = np.sum(packed, axis=0, dtype=np.int64).astype(np.int32) if size else packed[0]
    assert (lanes.unpack(total, bits, size, s * n) == rows.sum(axis=0)).all()


@pytest.mark.parametrize("bits", LANES)
def test_layout(bits):
    """Lane e // w of word e % w in a tile of w words."""
    count = LANES[bits]
    size = count * 1024 + 2 * count + 1
    for element in (0, 1, 1023, 1024, count * 1024 - 1, count * 1024, size - 1):
        digits = np.zeros(size, np.int32)
        digits[element] = 1
        tile, inside = divmod(element, count * 1024)
        w = 1024 if tile == 0 else 3
        expected = np.zeros(1024 + 3, np.int64)
        expected[tile * 1024 + inside % w] = 1 << bits * (inside // w)
        assert (lanes.pack(digits, bits).view(np.uint32) == expected).all()


def test_golden_words():
    """The wire format: these numbers may never change."""
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    dither = np.arange(9, dtype=np.uint32) * np.uint32(0x1C71C71C)
    digits = linear.encode(x, ONE, 31, dither)
    assert digits.tolist() == [-31, -24, -16, -8, 0, 8, 16, 24, 31]
    assert lanes.pack(digits, 8).tolist() == [1046497, 1572840, 2033648]
    assert lanes.pack(digits, 10).tolist() == [16768993, 25165800, 32514032]
