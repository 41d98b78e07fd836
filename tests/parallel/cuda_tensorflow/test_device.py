"""Exchanges on a GPU, simulated or real, return the bits of the specification."""

import threading

import numba
import numpy as np
import pytest
import tensorflow as tf

from horovod_gqsgd import shards
from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow import DisagreementError, GlobalQSGD, register_reduction
from tests.parallel.tensorflow.specification import everyone, expected, gradient, same
from tests.parallel.tensorflow.test_exponential import median, registry

__all__ = ["registry"]  # a fixture

#: A function that raises does so itself, or as TensorFlow tells it.
ERRORS = (ValueError, tf.errors.OpError)


def on_gpu(tensor: tf.Tensor) -> tf.Tensor:
    with tf.device("CPU:0" if numba.config.ENABLE_CUDASIM else "GPU:0"):
        return tf.identity(tensor)


def test_linear(hvd, traced, places):
    average = traced(lambda x: hvd.allreduce(x, name="linear", compression=GlobalQSGD))
    for step in range(2):
        everyones = everyone(hvd, 11, 100, seed=step)
        result = average(on_gpu(everyones[hvd.rank()]))
        assert same(result, expected(everyones, Config(), "linear", step))
    assert len(places) == 6
    assert None not in places


def test_stages_and_their_kernels(hvd, simulated):
    hvd.allreduce(gradient(hvd.rank(), 1100), name="stages", compression=GlobalQSGD)
    kernels = [place.kernels for place in simulated]
    assert kernels == [["header", "maximum"], ["prepare", "encode"], ["prepare", "decode"]]
    assert not any(place.queue or place.held for place in simulated)


@pytest.mark.parametrize("way", ["gather", "scatter"])
@pytest.mark.parametrize(
    "parameters",
    [{}, {"bits": 3, "reduction": "pairwise"}, {"base": 2**0.25, "norm": 2}],
    ids=["exact", "pairwise", "sums"],
)
def test_exponential(hvd, places, monkeypatch, way, parameters):
    monkeypatch.setattr(shards, "GATHER_LIMIT", 2**20 if way == "gather" else 0)
    name, compression = f"exponential.{way}", GlobalQSGD(levels="exponential", **parameters)
    average = tf.function(lambda x: hvd.allreduce(x, name=name, compression=compression))
    for step in range(2):
        everyones = everyone(hvd, 13, 100, seed=step)
        result = average(on_gpu(everyones[hvd.rank()]))
        assert same(result, expected(everyones, compression.config, name, step))
    stages = 3 + (way == "scatter") + ("norm" in parameters)
    assert len(places) == 2 * stages
    assert None not in places


def test_group_of_exponential_codes(hvd, simulated):
    compression = GlobalQSGD(levels="exponential", bits=5)
    shapes = [(1100,), (1027,)]
    mine = [on_gpu(gradient(hvd.rank(), *shape)) for shape in shapes]
    results = hvd.grouped_allreduce(mine, name="eg", compression=compression)
    for i, shape in enumerate(shapes):
        reference = expected(everyone(hvd, *shape), compression.config, f"eg.{i}")
        assert same(results[i], reference)
    kernels = [place.kernels for place in simulated]
    both = ["prepare", "prepare"]
    assert kernels[1:] == [
        [*both, "encode", "encode"],
        [*both, "exact", "exact", "decode", "decode"],
    ]


def test_reductions_of_users_run_on_the_host(hvd, places, registry):
    register_reduction("median", median)
    compression = GlobalQSGD(levels="exponential", reduction="median")
    everyones = everyone(hvd, 1100)
    mine = on_gpu(everyones[hvd.rank()])
    result = hvd.allreduce(mine, name="median", compression=compression)
    assert same(result, expected(everyones, compression.config, "median"))
    assert not places


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_types(hvd, dtype):
    average = tf.function(lambda x: hvd.allreduce(x, name="type", compression=GlobalQSGD))
    everyones = everyone(hvd, 1101, dtype=dtype)
    result = average(on_gpu(everyones[hvd.rank()]))
    assert same(result, expected(everyones, Config(), "type"))


@pytest.mark.parametrize(
    "parameters", [{"bits": 5, "block": None}, {"norm": 2}, {"norm": ("inf", 1)}], ids=str
)
def test_configurations(hvd, parameters):
    compression = GlobalQSGD(**parameters)
    total = tf.function(lambda x: hvd.allreduce(x, name="c", op=hvd.Sum, compression=compression))
    everyones = everyone(hvd, 3, 400)
    result = total(on_gpu(everyones[hvd.rank()]))
    assert same(result, expected(everyones, Config(**parameters), "c", factor=hvd.size()))


def test_group(hvd):
    shapes = [(1100,), (10,), (2, 600)]
    average = tf.function(lambda *x: hvd.grouped_allreduce(x, name="g", compression=GlobalQSGD))
    results = average(*[on_gpu(gradient(hvd.rank(), *shape)) for shape in shapes])
    for i, index in enumerate((0, 2)):  # the i-th compressed one
        everyones = everyone(hvd, *shapes[index])
        assert same(results[index], expected(everyones, Config(), f"g.{i}"))


def test_bad_elements(hvd):
    values = gradient(hvd.rank(), 1100).numpy()
    if hvd.rank() == hvd.size() - 1:
        values[1050] = np.nan
    mean = hvd.allreduce(on_gpu(tf.constant(values)), name="bad", compression=GlobalQSGD)
    assert np.isnan(mean).nonzero()[0].tolist() == list(range(1024, 1100))


def test_disagreement(hvd, traced):
    check_disagreement(hvd, traced, "inf")


def test_disagreement_of_sums(hvd):
    check_disagreement(hvd, tf.function, 2)


@pytest.mark.parametrize("limit", [2**20, 0], ids=["gather", "scatter"])
def test_disagreement_of_codes(hvd, monkeypatch, limit):
    monkeypatch.setattr(shards, "GATHER_LIMIT", limit)
    check_disagreement(hvd, tf.function, "inf", levels="exponential")


def check_disagreement(hvd, traced, norm, **parameters):
    compression = GlobalQSGD(bits=8 if hvd.rank() == 0 else 6, norm=norm, **parameters)
    name = "d." + ".".join([str(norm), *parameters])
    average = traced(lambda x: hvd.allreduce(x, name=name, compression=compression))
    with pytest.raises((DisagreementError, *ERRORS), match="bits is 8 on rank 0; 6 on rank"):
        average(on_gpu(tf.ones(1100)))


def test_a_slow_gradient_is_overtaken(hvd):
    """Stages on a GPU are stateless nodes too: their order in the graph binds nobody."""
    arrived = threading.Event()

    def wait(x):
        assert arrived.wait(60), "the other gradient waits for this one"
        return x

    def arrive(x):
        arrived.set()
        return x

    @tf.function
    def both(x, y):
        slow = tf.numpy_function(wait, [x], tf.float32, stateful=False)
        slow.set_shape(x.shape)
        first = hvd.allreduce(slow, name="slow", compression=GlobalQSGD)
        second = hvd.allreduce(y, name="fast", compression=GlobalQSGD)
        return first, tf.numpy_function(arrive, [second], tf.float32, stateful=False)

    both(on_gpu(gradient(hvd.rank(), 1100)), on_gpu(gradient(hvd.rank(), 1100)))


def test_tensors_of_the_host_stay_there(hvd, monkeypatch):
    from horovod_gqsgd.tensorflow import device

    monkeypatch.setattr(device, "of", lambda tensors: None)
    monkeypatch.setattr(device, "available", lambda: True)
    average = tf.function(lambda x: hvd.allreduce(x, name="host", compression=GlobalQSGD))
    everyones = everyone(hvd, 2000, dtype=tf.bfloat16)
    assert same(average(everyones[hvd.rank()]), expected(everyones, Config(), "host"))


def test_training(hvd):
    variable = tf.Variable(gradient(0, 64, 20))
    inputs = on_gpu(gradient(hvd.rank(), 16, 64, seed=5))

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape(), compression=GlobalQSGD) as tape:
            loss = tf.reduce_mean(tf.square(inputs @ variable))
        [slope] = tape.gradient(loss, [variable])
        variable.assign_sub(0.1 * slope)
        return loss

    losses = [step().numpy() for _ in range(3)]
    assert losses[-1] < losses[0]
    weights = hvd.allgather(variable[None], name="weights").numpy()
    assert (weights == weights[0]).all()
