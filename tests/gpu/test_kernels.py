"""Every kernel on a GPU gives the bits of the specification, large tensors included."""

import itertools

import numpy as np
import pytest

from horovod_gqsgd.codecs.linear import LANES
from horovod_gqsgd.config import Config
from tests.cuda_code.cases import check
from tests.cuda_code.programs import catalogue
from tests.unit import cuda_checks as checks
from tests.unit.test_kernels import DTYPES, of_type, sample

SIZES = [0, 1, 7, 4095, 4096, 4099, 131_149]
BLOCKS = [128, 1024, 4096, None]
BASES = [2, 2**0.5, 2**0.25]
ROUNDINGS = [("independent", 2), ("correlated", 2), ("correlated", 3)]


@pytest.mark.parametrize("name", catalogue())
def test_every_kernel(gpu, name):
    for size in SIZES:
        check(name, gpu, size)


def test_header(gpu):
    checks.check_header(gpu, 1000, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms(gpu, dtype):
    for size, q, p, block in itertools.product(SIZES, [1, 2, "inf"], [1, 2, "inf"], BLOCKS):
        checks.check_norms(gpu, sample(size, dtype), Config(norm=(q, p), block=block))


@pytest.mark.parametrize("bits", LANES)
@pytest.mark.parametrize(("rounding", "n"), ROUNDINGS)
def test_linear(gpu, bits, rounding, n):
    for size, block in itertools.product(SIZES, BLOCKS):
        config = Config(bits=bits, rounding=rounding, block=block)
        checks.check_linear(gpu, sample(size), config, n, n - 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_other_types_and_bad_elements(gpu, dtype, bad):
    for size in SIZES[3:]:
        x = sample(size)
        for config in (Config(), Config(levels="exponential")):
            check = checks.check_linear if config.levels == "linear" else checks.check_exponential
            check(gpu, of_type(x, dtype), config, 4, 2)
        x[1030] = bad
        checks.check_linear(gpu, of_type(x, dtype), Config(), 2, 1)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("rounding", "n"), ROUNDINGS)
def test_exponential(gpu, base, rounding, n):
    for bits, size in itertools.product(range(2, 9), SIZES):
        config = Config(levels="exponential", bits=bits, base=base, rounding=rounding)
        checks.check_exponential(gpu, sample(size), config, n, n - 1)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("reduction", ["exact", "pairwise"])
def test_reduce(gpu, base, reduction):
    for bits, n, size in itertools.product((2, 3, 8), (1, 2, 3, 7, 64), (1, 7, 5000)):
        config = Config(levels="exponential", bits=bits, base=base, reduction=reduction)
        checks.check_reduce(gpu, config, n, size, 8000)
    for bits in (3, 8):
        checks.check_registered(gpu, bits, 5000, 8000)
