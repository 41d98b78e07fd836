"""Runs of zeros, which kernels pass over, get the bits of the specification like all others."""

import numpy as np
import pytest

from horovod_gqsgd.codecs import linear
from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.reductions import get_reduction
from tests.unit.test_kernels import (
    DTYPES,
    LARGE,
    check_exponential,
    check_linear,
    check_reduce_of,
    sample,
)

SIZES = [1, 128, 1025, 20_480, 10_240 + 1023, LARGE]


def with_runs_of_zeros(x: np.ndarray, seed: int) -> np.ndarray:
    """Of 128 elements each: some untouched, some all zeros, some zeros but for the last element."""
    for at in range(0, x.shape[-1], 128):
        run = x[..., at : at + 128]
        kind = np.random.default_rng([seed, at]).integers(4)
        if kind:
            run[..., : run.shape[-1] - (kind == 3)] = 0
    return x


def gradient(size: int, dtype: str, seed: int) -> np.ndarray:
    x = with_runs_of_zeros(sample(size, dtype), seed)
    half = x[size // 2 :]
    half[:] = np.where(half == 0, -half, half) if dtype != "bfloat16" else half
    if seed == 1:
        x[: size // 3 * 2] = 0  # whole tiles and stages
    return x


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear(dtype, seed):
    for size in SIZES:
        for bits, block in ((8, 1024), (8, 128), (5, 1024), (3, None)):
            check_linear(gradient(size, dtype, seed), bits, 3, 1, "correlated", block)


@pytest.mark.parametrize("bits", linear.LANES)
def test_linear_of_every_width(bits):
    check_linear(gradient(30_000, "float32", 2), bits, 2, 1, "independent", 1024)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_exponential(dtype, seed):
    for size in SIZES:
        for bits, block in ((8, 1024), (4, 128), (3, None)):
            check_exponential(gradient(size, dtype, seed), Levels(bits, 1), 2, "correlated", block)


@pytest.mark.parametrize("octave", [1, 2, 4])
@pytest.mark.parametrize("name", ["exact", "pairwise"])
def test_reduce(octave, name):
    for bits, n, size in ((8, 4, LARGE), (4, 4, LARGE), (3, 5, 9_999), (8, 1, 1030), (4, 3, 7)):
        levels = Levels(bits, octave)
        codes = np.random.default_rng(n).integers(0, 2**bits, (n, size)).astype(np.uint8)
        codes[codes == levels.count + 1] = 0
        check_reduce_of(get_reduction(name), levels, with_runs_of_zeros(codes, bits))
        codes[: n - 1] = 0  # which the last row alone is not
        check_reduce_of(get_reduction(name), levels, codes)
        check_reduce_of(get_reduction(name), levels, np.zeros_like(codes))
