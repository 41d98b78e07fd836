import numpy as np
import pytest

from horovod_gqsgd import norms
from tests.unit.checks import gradients

ORDERS = [1, 2, "inf"]


def plain(x: np.ndarray, q, p) -> np.floating:
    """‖x‖_{q,p} of rows by the textbook formula, in float64."""
    orders = {1: 1, 2: 2, "inf": np.inf}
    each = np.array([np.linalg.norm(row.astype(np.float64), orders[q]) for row in x])
    return np.linalg.norm(each, orders[p])


@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize(("size", "block"), [(1, None), (1000, None), (1000, 128), (70_000, None)])
def test_against_the_formula(q, p, size, block):
    x = gradients(3, size)
    sent = np.stack([norms.local(row, q, p, block) for row in x])
    joined = norms.joined(sent.max(axis=0) if p == "inf" else sent.sum(axis=0), p)
    width = block or size
    expected = [plain(x[:, i : i + width], q, p) for i in range(0, size, width)]
    np.testing.assert_allclose(joined, expected, rtol=3e-7)
    if q == "inf":
        assert p != "inf" or joined.tolist() == np.float32(expected).tolist()


@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("p", ORDERS)
def test_the_norm_bounds_every_element(q, p):
    x = gradients(2, 5000)
    sent = np.stack([norms.local(row, q, p, 128) for row in x])
    joined = norms.joined(sent.max(axis=0) if p == "inf" else sent.sum(axis=0), p)
    each = norms.spread(joined, 5000, 128)
    assert (np.abs(x) <= each * (1 + 1e-6)).all()


def test_max_orders_nan_above_inf_above_numbers():
    values = np.float32([0, 1e-45, 1, -3, 3.4e38, -np.inf, np.nan, -np.nan])
    bits = norms.magnitude_bits(values)
    assert (np.diff(bits) >= 0).all()
    assert (bits[-2:] > bits[-3]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("p", ORDERS)
def test_one_bad_element_spoils_its_block_alone(bad, q, p):
    x = np.ones(384, np.float32)
    x[200] = bad
    joined = norms.joined(norms.local(x, q, p, 128), p)
    assert np.isfinite(joined).tolist() == [True, False, True]


def test_tiny_norms_count_as_zero():
    x = np.float32([2.0**-97, 2.0**-96])
    assert norms.joined(norms.magnitude_bits(x), "inf").tolist() == [0, 2.0**-96]


def test_float64_beyond_float32_is_not_finite():
    x = np.array([1e300, 1.0])
    assert not np.isfinite(norms.joined(norms.local(x, "inf", "inf", None), "inf"))


def test_zeros_are_neutral():
    """A rank that has joined contributes zeros to Max and to Sum."""
    x = gradients(1, 300)[0]
    for q in ORDERS:
        for p in ORDERS:
            mine = norms.local(x, q, p, 128)
            idle = np.zeros_like(mine)
            both = np.maximum(mine, idle) if p == "inf" else mine + idle
            assert norms.joined(both, p).tolist() == norms.joined(mine, p).tolist()


def test_numbers_are_stored_as_bfloat16_as_torch_rounds_them():
    import torch

    draws = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    values = np.concatenate([draws, np.array([np.inf, -np.inf, 3.4e38, 0, -0.0], np.float32)])
    values = values[~np.isnan(values)]
    out = np.empty(values.size, np.uint16)
    norms.store(values, out)
    expected = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (out == expected).all()
    assert (norms.as_float32(out) == torch.from_numpy(values).bfloat16().float().numpy()).all()
