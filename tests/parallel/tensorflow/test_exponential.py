"""``levels="exponential"`` through Horovod: codes, a registered reduction, two ways to carry it."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from horovod_gqsgd import reductions, shards
from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow import GlobalQSGD, register_reduction, statistics
from tests.parallel.tensorflow.specification import (
    everyone,
    expected,
    gradient,
    identical,
    replicas_identical,
    same,
)
from tests.parallel.tensorflow.test_allreduce import ERRORS


def exponential(**parameters):
    return GlobalQSGD(levels="exponential", **parameters)


@pytest.fixture(params=["gather", "scatter"])
def way(request, monkeypatch):
    """Both ways for tensors of any size."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 2**62 if request.param == "gather" else 0)
    return request.param


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(reductions, "_registry", dict(reductions._registry))


def median(codes, levels, dither):
    return levels.encode(np.median(levels.decode(codes), axis=0), dither)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"bits": 3, "rounding": "independent", "seed": 7, "block": None},
        {"bits": 6, "reduction": "pairwise"},
        {"bits": 8, "base": 2, "reduction": "median"},
        {"norm": (1, "inf")},
        {"norm": 2, "bits": 7},
    ],
    ids=str,
)
def test_is_the_specification_bit_for_bit(hvd, traced, way, registry, parameters):
    register_reduction("median", median)
    config, compression = Config(levels="exponential", **parameters), exponential(**parameters)
    average = traced(lambda x: hvd.allreduce(x, name="spec", compression=compression))
    for step in range(2):
        everyones = everyone(hvd, 70, 73, seed=step)
        result = average(everyones[hvd.rank()])
        assert identical(hvd, result)
        reference = expected(everyones, config, "spec", step)
        if config.p == "inf":
            assert same(result, reference)
        else:  # the order in which a backend adds float64 norms is its own
            assert (np.abs(result - reference) > 1e-6).mean() < 1e-3


def test_both_ways_give_the_same_bits(hvd, monkeypatch):
    """At sizes where shards are uneven, empty, or end inside a group of eight codes."""
    compression = exponential(bits=5, min_size=0)
    for size in (1, 7, 9, 1025, 70_001):
        for limit in (2**62, 0):
            monkeypatch.setattr(shards, "GATHER_LIMIT", limit)
            name = f"ways.{size}.{limit}"
            result = hvd.allreduce(gradient(hvd.rank(), size), name=name, compression=compression)
            assert same(result, expected(everyone(hvd, size), compression.config, name))


def test_a_large_tensor_is_scattered(hvd, traced):
    everyones = everyone(hvd, 1100, 1000)
    before = statistics.alltoalls
    average = traced(lambda x: hvd.allreduce(x, name="large", compression=exponential()))
    reference = expected(everyones, Config(levels="exponential"), "large")
    assert same(average(everyones[hvd.rank()]), reference)
    assert statistics.alltoalls - before == 1


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_other_types(hvd, way, dtype):
    everyones = everyone(hvd, 3, 1001, dtype=dtype)
    result = hvd.allreduce(everyones[hvd.rank()], name="types", compression=exponential())
    assert same(result, expected(everyones, Config(levels="exponential"), "types"))


@pytest.mark.parametrize(
    ("bad", "dtype"), [("nan", tf.float32), ("inf", tf.float16), ("-inf", tf.bfloat16)]
)
def test_a_bad_element_on_one_rank_makes_its_block_nan_everywhere(hvd, traced, way, bad, dtype):
    mine = gradient(hvd.rank(), 4096).numpy()
    if hvd.rank() == 0:
        mine[1500] = float(bad)
    average = traced(lambda x: hvd.allreduce(x, name="bad", compression=exponential(bits=4)))
    result = tf.cast(average(tf.cast(mine, dtype)), tf.float32).numpy()
    assert np.isnan(result[1024:2048]).all()
    assert np.isfinite(result[:1024]).all()
    assert np.isfinite(result[2048:]).all()


def test_group_is_one_bucket(hvd, traced, way):
    """Small tensors in it go uncompressed, the others in one exchange of codes."""
    shapes = [(3000,), (7,), (40, 50), (4001,)]
    everyones = [everyone(hvd, *shape, seed=i) for i, shape in enumerate(shapes)]
    compression, before = exponential(bits=6), statistics.sends
    average = traced(lambda xs: hvd.grouped_allreduce(xs, name="group", compression=compression))
    results = average([group[hvd.rank()] for group in everyones])
    for i, place in enumerate((0, 2, 3)):
        reference = expected(everyones[place], compression.config, f"group.{i}")
        assert same(results[place], reference)
    np.testing.assert_allclose(results[1], tf.reduce_mean(everyones[1], 0), rtol=1e-5, atol=1e-6)
    assert statistics.sends - before == (2 if way == "scatter" else 1)


def test_training_keeps_replicas_identical_and_learns(hvd, way):
    weight = tf.Variable(tf.random.stateless_normal([32, 64], [0, 0]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weight) ** 2)
        tape = hvd.DistributedGradientTape(tape, compression=exponential(bits=3))
        weight.assign_sub(2.0 * tape.gradient(loss, [weight])[0])
        return loss

    losses = [step(gradient(hvd.rank(), 8, 32, seed=i % 3)).numpy() for i in range(20)]
    assert replicas_identical(hvd, [weight])
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("case", ["version", "reduction", "bits", "base", "norm"])
def test_ranks_that_disagree_are_told_what_differs(hvd, traced, way, registry, case):
    odd = hvd.rank() == 0
    register_reduction("centre", median, version=2 if case == "version" and odd else 1)
    parameters = {"reduction": "pairwise" if case == "reduction" and odd else "centre"}
    if case in ("bits", "base"):
        parameters |= {"bits": 7 if odd else 8} if case == "bits" else {"base": 2 if odd else None}
    if case == "norm":
        parameters["norm"] = 2 if odd else (1, 2)
    compression = exponential(**parameters)
    average = traced(lambda x: hvd.allreduce(x, compression=compression))
    said = r"reduction is centre=\S*median@2 on rank 0; centre=\S*median@1 on rank"
    with pytest.raises(ERRORS, match=said if case == "version" else f"{case} is"):
        average(tf.ones(2048))
    assert same(hvd.allreduce(tf.ones(5)), tf.ones(5))


def test_a_reduction_that_fails_on_one_rank_is_an_error_everywhere(
    hvd, traced, registry, monkeypatch
):
    monkeypatch.setattr(shards, "GATHER_LIMIT", 0)

    def fragile(codes, levels, dither):
        if hvd.rank() == 0 and fail:
            raise KeyError("lost")
        return median(codes, levels, dither)

    register_reduction("fragile", fragile)
    compression = exponential(reduction="fragile")
    average = traced(lambda x: hvd.allreduce(x, name="fragile", compression=compression))
    for fail in (False, True, True, False):
        said = "KeyError: 'lost'" if hvd.rank() == 0 else "on another rank"
        with pytest.raises(ERRORS, match=said) if fail else contextlib.nullcontext():
            average(tf.ones(4000))
