import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod_gqsgd import codes as codes_of
from horovod_gqsgd.codecs import exponential
from horovod_gqsgd.codecs.exponential import Levels, scale_for
from tests.unit.checks import ROUNDINGS, check_below, check_unbiased, words

OCTAVES = [1, 2, 4]
ALL = [Levels(bits, octave) for bits in range(2, 9) for octave in OCTAVES]
TRIALS = 16_384


def ids(levels: Levels) -> str:
    return f"{levels.bits} bits, {levels.octave} an octave"


every_level_set = pytest.mark.parametrize("levels", ALL, ids=ids)


@every_level_set
def test_levels_are_fixed_points_for_every_dither(levels):
    codes = np.arange(2**levels.bits, dtype=np.uint8)
    codes = codes[codes != levels.count + 1]  # negative zero
    values = levels.decode(codes)
    for dither in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        word = np.full(codes.size, dither, np.uint32)
        assert (levels.encode(values, word) == codes).all()


@every_level_set
def test_values_and_integers(levels):
    k = np.arange(levels.count)
    np.testing.assert_allclose(levels.values[1:], 2.0 ** (-k / levels.octave), rtol=1e-7)
    assert np.abs(levels.integers[1:] - 2.0 ** (40 - k / levels.octave)).max() <= 0.5
    assert levels.values[0] == levels.integers[0] == 0
    assert levels.values[1] == 1
    assert levels.integers[1] == 2**40


@every_level_set
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_unbiased_with_bounded_variance(levels, rounding):
    """Variance ≤ x²·(b−1)²/(4b) above the smallest level l, ≤ l²/4 below it."""
    base, smallest = 2.0 ** (1 / levels.octave), float(levels.values[-1])
    low = max(smallest, 2.0**-20)
    cases = np.exp2(np.random.default_rng(0).uniform(np.log2(low), 0, 12)).astype(np.float32)
    if smallest > 2.0**-100:  # below the levels of 8 bits, base 2 lie only denormals: zero
        cases[:4] = np.float32([0.2, 0.5, 0.9, 0.01]) * np.float32(smallest)
    cases[::3] *= -1
    samples = levels.decode(
        levels.encode(np.tile(cases, TRIALS), words(rounding, 3, TRIALS * 12)[1])
    ).reshape(TRIALS, 12)
    check_unbiased(samples / np.abs(cases), np.sign(cases))
    variance = np.square(samples.astype(np.float64) - cases).mean(axis=0)
    bound = np.where(
        np.abs(cases) < smallest,
        smallest**2 / 4,
        cases.astype(np.float64) ** 2 * (base - 1) ** 2 / (4 * base),
    )
    for measured, allowed in zip(variance, bound, strict=True):
        check_below(measured, allowed, TRIALS)


@every_level_set
def test_rounding_is_monotone_in_the_dither(levels):
    values = np.array([0.3, -0.3, 0.001, -0.001, 0.77, -0.77], np.float32)
    dithers = np.linspace(0, 2**32 - 1, 999).astype(np.uint32)
    rounded = np.stack([levels.decode(levels.encode(values, np.full(6, u))) for u in dithers])
    assert (np.diff(rounded, axis=0) >= 0).all()


def test_opposite_values_with_one_dither_cancel():
    """The sum of two roundings is within one gap of zero, not two: signs do not add up."""
    levels = Levels(4, 1)
    x = np.random.default_rng(0).uniform(0, 1, 5000).astype(np.float32)
    dither = words("independent", 1, 5000)[0]
    both = levels.decode(levels.encode(x, dither)) + levels.decode(levels.encode(-x, dither))
    gap = np.exp2(np.floor(np.log2(np.maximum(x, levels.values[-1]))))
    assert (np.abs(both) <= gap).all()


@given(
    norm=st.floats(2.0**-96, float(np.finfo(np.float32).max), width=32),
    dither=st.integers(0, 2**32 - 1),
    index=st.integers(0, len(ALL) - 1),
)
@settings(max_examples=300, deadline=None)
def test_the_norm_is_level_one_whatever_it_is(norm, dither, index):
    levels = ALL[index]
    x = np.array([norm, -norm], np.float32)
    codes = levels.encode_scaled(x, scale_for(x[:1]), np.full(2, dither, np.uint32))
    assert codes.tolist() == [1, levels.count + 2]
    decoded = exponential.decode(codes, levels, np.repeat(x[:1], 2))
    assert decoded.tolist() == x.tolist()


@pytest.mark.parametrize("value", [1.0000001, -2, np.nan, np.inf])
def test_values_outside_raise(value):
    with pytest.raises(ValueError, match="divide by the norm"):
        Levels(8, 1).encode(np.float32([0, value]), np.zeros(2, np.uint32))


@pytest.mark.parametrize("norm", [0.0, np.nan, np.inf])
def test_unusable_norms(norm):
    levels = Levels(8, 4)
    norms = np.float32([norm, norm])
    x = np.float32([1, norm])
    codes = levels.encode_scaled(x, scale_for(norms), np.full(2, 0xFFFFFFFF, np.uint32))
    assert codes.tolist() == [0, 0]
    decoded = exponential.decode(codes, levels, norms)
    assert np.isnan(decoded).all() if norm else (decoded == 0).all()


def test_denormals_and_zeros_are_zero():
    levels = Levels(8, 1)
    x = np.float32([0, -0.0, 1e-45, -1e-40])
    scale = scale_for(np.float32([2.0**-96]))
    assert levels.encode_scaled(x, scale, np.full(4, 0xFFFFFFFF, np.uint32)).tolist() == [0] * 4


@given(bits=st.integers(2, 8), size=st.integers(0, 3000), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_packing_round_trip(bits, size, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, size).astype(np.uint8)
    packed = codes_of.pack(codes, bits)
    assert packed.size == codes_of.packed_size(size, bits)
    assert (codes_of.unpack(packed, bits, size) == codes).all()


def test_packing_is_little_endian():
    codes = np.arange(8, dtype=np.uint8)
    packed = codes_of.pack(codes, 3)
    assert int.from_bytes(packed.tobytes(), "little") == sum(
        c << 3 * i for i, c in enumerate(codes)
    )


def test_golden_codes():
    """The wire format: these numbers may never change."""
    x = np.float32([1, -1, 0.75, -0.3, 0.01, -1e-6, 0, 0.6])
    dither = np.arange(8, dtype=np.uint32) * np.uint32(0x1FFFFFFF)
    golden = {
        (8, 1): [1, 129, 2, 131, 8, 149, 0, 1],
        (4, 1): [1, 9, 2, 11, 7, 0, 0, 1],
        (8, 2): [1, 129, 2, 132, 14, 169, 0, 2],
        (8, 4): [1, 129, 3, 136, 28, 209, 0, 4],
    }
    for (bits, octave), codes in golden.items():
        assert Levels(bits, octave).encode(x, dither).tolist() == codes, (bits, octave)
