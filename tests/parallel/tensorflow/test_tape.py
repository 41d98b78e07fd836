"""``hvd.DistributedGradientTape(compression=GlobalQSGD)`` in the ways users call it."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow import GlobalQSGD, statistics
from horovod_gqsgd.tensorflow.exchange import Exchange
from tests.parallel.tensorflow.specification import (
    everyone,
    expected,
    gradient,
    identical,
    replicas_identical,
    same,
)


def layers():
    """Weights of 2,048, 4,096 and 64 elements, the same on every rank."""
    shapes = [(32, 64), (64, 64), (64, 1)]
    return [
        tf.Variable(tf.random.stateless_normal(shape, [i, 0]) / 8, name=f"layer{i}")
        for i, shape in enumerate(shapes)
    ]


def loss(weights, x):
    for weight in weights:
        x = tf.tanh(x @ weight)
    return tf.reduce_mean(x**2)


def local_gradients(weights, rank):
    with tf.GradientTape() as tape:
        value = loss(weights, gradient(rank, 8, 32))
    return tape.gradient(value, weights)


def close_to_mean(hvd, weights, gradients, factor=1.0, ranks=None):
    """Gradients within one quantisation step of the true mean, the same on all ranks."""
    everyones = [local_gradients(weights, rank) for rank in ranks or range(hvd.size())]
    for mine, theirs in zip(gradients, zip(*everyones, strict=True), strict=True):
        top = np.max(np.abs(theirs)) * factor
        mean = tf.reduce_mean(tf.stack(theirs), 0) * factor
        assert np.abs(tf.convert_to_tensor(mine) - mean).max() <= top / 20


def step(hvd, weights, tape_type=None, **options):
    options.setdefault("compression", GlobalQSGD)
    with tf.GradientTape() as tape:
        value = loss(weights, gradient(hvd.rank(), 8, 32))
    distributed = (tape_type or hvd.DistributedGradientTape)(tape, **options)
    return distributed.gradient(value, weights)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": GlobalQSGD(bits=10)},
        {"op": "Sum"},
        {"gradient_predivide_factor": 4.0},
        {"groups": 1},
        {"groups": 2},
    ],
    ids=str,
)
def test_gradients_are_the_mean(hvd, traced, options):
    weights = layers()
    factor = hvd.size() if options.get("op") == "Sum" else 1
    options = {k: getattr(hvd, v) if k == "op" else v for k, v in options.items()}
    run = traced(lambda: step(hvd, weights, **options))
    before = statistics.tensors
    for _ in range(2):
        gradients = run()
        close_to_mean(hvd, weights, gradients, factor)
        assert all(identical(hvd, gradient) for gradient in gradients)
    assert statistics.tensors - before == 4


def test_groups_of_variables(hvd, traced):
    weights = layers()
    groups = [[weights[0], weights[2]]]
    close_to_mean(hvd, weights, traced(lambda: step(hvd, weights, groups=groups))())


def test_num_groups(hvd):
    weights = layers()
    with pytest.warns(DeprecationWarning, match="num_groups"):
        close_to_mean(hvd, weights, step(hvd, weights, num_groups=2))


@pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")  # Keras 2 itself
def test_local_layers(hvd, traced):
    """`PartialDistributedGradientTape` leaves the gradients of some layers to their rank."""
    layer = tf.keras.layers.Dense(64, use_bias=False)
    layer.build((None, 32))
    weights = [layer.kernel, *layers()[1:]]
    hvd.broadcast_variables(weights, root_rank=0)
    tape = hvd.PartialDistributedGradientTape
    first, second, _third = traced(lambda: step(hvd, weights, tape, local_layers=layer))()
    mine = local_gradients(weights, hvd.rank())[0]
    np.testing.assert_allclose(first, mine / hvd.size(), rtol=1e-4, atol=1e-6)
    assert identical(hvd, second)


@pytest.mark.parametrize("as_dense", [False, True])
def test_embeddings(hvd, traced, as_dense):
    """Sparse gradients are gathered as without the compressor, unless they are made dense."""
    table = tf.Variable(tf.zeros([100, 40]))

    def run():
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [hvd.rank(), 40])
            value = tf.reduce_sum(rows)
        tape = hvd.DistributedGradientTape(tape, compression=GlobalQSGD, sparse_as_dense=as_dense)
        return tape.gradient(value, [table])[0]

    before = statistics.tensors
    result = traced(run)()
    assert isinstance(result, tf.IndexedSlices) != as_dense
    assert statistics.tensors - before == as_dense
    dense = tf.convert_to_tensor(result).numpy()
    np.testing.assert_allclose(dense[40], 1, atol=1e-6)
    np.testing.assert_allclose(dense[: hvd.size()], 1 / hvd.size(), atol=0.02)


@pytest.mark.np(3)
def test_process_sets(hvd, traced):
    pair = hvd.add_process_set([0, 2])
    try:
        weights = layers()
        gradients = traced(lambda: step(hvd, weights, process_set=pair))()
        if pair.included():
            close_to_mean(hvd, weights, gradients, ranks=[0, 2])
        else:
            for mine, own in zip(gradients, local_gradients(weights, 1), strict=True):
                np.testing.assert_allclose(mine, own, rtol=1e-5, atol=1e-7)
    finally:
        hvd.remove_process_set(pair)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_other_types(hvd, dtype):
    """bfloat16 too, which Horovod itself refuses."""
    weights = [tf.Variable(tf.cast(weight, dtype)) for weight in layers()]

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            value = loss(weights, x)
        tape = hvd.DistributedGradientTape(tape, compression=GlobalQSGD)
        return tape.gradient(value, weights)

    gradients = run(gradient(hvd.rank(), 8, 32, dtype=dtype))
    assert all(g.dtype == dtype and identical(hvd, g) for g in gradients)


def test_training_keeps_replicas_identical_and_learns(hvd, traced):
    weights = layers()

    def train(x):
        with tf.GradientTape() as tape:
            value = loss(weights, x)
        tape = hvd.DistributedGradientTape(tape, compression=GlobalQSGD(bits=5))
        for weight, change in zip(weights, tape.gradient(value, weights), strict=True):
            weight.assign_sub(0.2 * change)
        return value

    train = traced(train)
    losses = [train(gradient(hvd.rank(), 8, 32)).numpy() for i in range(20)]
    assert replicas_identical(hvd, weights)
    assert losses[-1] < 0.8 * losses[0]


def test_exchanges_overlap_with_the_computation_of_other_gradients(hvd, monkeypatch):
    """A gradient that is ready is sent and decoded while another, traced before, is computed."""
    decoded = threading.Event()
    original = Exchange.finish

    def finish(self, *arguments):
        result = original(self, *arguments)
        if self.call.name == "early":
            decoded.set()
        return result

    def slowly(x):
        assert decoded.wait(30), "the other exchange waits for this gradient"
        return x

    @tf.function
    def run(x):
        late = tf.numpy_function(slowly, [x], tf.float32, stateful=False)
        late.set_shape(x.shape)
        return [
            hvd.allreduce(tensor, name=name, compression=GlobalQSGD)
            for name, tensor in (("late", late), ("early", 2 * x))
        ]

    monkeypatch.setattr(Exchange, "finish", finish)
    everyones = everyone(hvd, 4000)
    late, early = run(everyones[hvd.rank()])
    assert same(late, expected(everyones, Config(), "late"))
    assert same(early, expected([2 * g for g in everyones], Config(), "early"))


def test_a_change_of_compressor_traces_again(hvd):
    weights = layers()
    for compression in (GlobalQSGD, hvd.Compression.none, GlobalQSGD(bits=16), GlobalQSGD):
        close_to_mean(hvd, weights, step(hvd, weights, compression=compression))
