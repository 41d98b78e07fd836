"""``model.fit`` with ``compression=GlobalQSGD``, through each of Horovod's Keras bindings."""

import horovod.keras
import horovod.tensorflow.keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from horovod_gqsgd.tensorflow import GlobalQSGD, statistics
from tests.parallel.tensorflow.specification import gradient, replicas_identical

# Keras 2 itself draws its seeds in a way that Python 3.11 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:non-integer arguments to randrange")

BINDINGS = {
    "tensorflow": lambda hvd: hvd,
    "tensorflow.keras": lambda hvd: horovod.tensorflow.keras,
    "keras": lambda hvd: horovod.keras,
}


def network():
    """Two layers of 2,048 and 4,096 weights and a small one, the same on every rank."""
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((32,)), *layers, keras.layers.Dense(1, dtype="float32")])


def data(rank, batches=8):
    """A task that is learnt at once, and differs between the ranks."""
    x = gradient(rank, 16 * batches, 32).numpy()
    return x, x.sum(1, keepdims=True) / 8


def fit(hvd, optimizer, **options):
    model = network()
    model.compile(optimizer, "mse")
    x, y = data(hvd.rank())
    history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, shuffle=False, **options)
    assert replicas_identical(hvd, model.trainable_variables)
    return model, history.history["loss"]


@pytest.mark.parametrize("binding", BINDINGS)
def test_fit(hvd, binding):
    before = statistics.tensors
    bound = BINDINGS[binding](hvd)
    optimizer = bound.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=GlobalQSGD)
    _model, losses = fit(hvd, optimizer)
    assert losses[-1] < 0.7 * losses[0]
    assert statistics.tensors - before == 2 * 3 * 8


@pytest.mark.parametrize(
    "options",
    [
        {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
        {"gradient_predivide_factor": 2.0},
        {"op": "Sum"},
        {"groups": 1},
    ],
    ids=str,
)
def test_options_of_the_optimizer(hvd, options):
    options = {k: getattr(hvd, v) if k == "op" else v for k, v in options.items()}
    plain = (
        keras.optimizers.legacy.Adam(0.01) if "groups" in options else keras.optimizers.SGD(0.01)
    )
    optimizer = horovod.tensorflow.keras.DistributedOptimizer(
        plain, compression=GlobalQSGD(bits=6), **options
    )
    _model, losses = fit(hvd, optimizer)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
        {"groups": 1},
    ],
    ids=str,
)
def test_exponential_levels(hvd, options):
    plain = keras.optimizers.legacy.SGD if "groups" in options else keras.optimizers.SGD
    before = statistics.code_bytes
    _model, losses = fit(
        hvd,
        horovod.tensorflow.keras.DistributedOptimizer(
            plain(0.05), compression=GlobalQSGD(levels="exponential", bits=4), **options
        ),
    )
    assert losses[-1] < losses[0]
    assert statistics.code_bytes > before


@pytest.mark.np(3)
@pytest.mark.parametrize("levels", ["linear", "exponential"])
def test_process_set(hvd, levels):
    """Its members train together, the third rank alone."""
    pair = hvd.add_process_set([0, 2])
    try:
        model = network()
        optimizer = horovod.tensorflow.keras.DistributedOptimizer(
            keras.optimizers.SGD(0.05), compression=GlobalQSGD(levels=levels), process_set=pair
        )
        model.compile(optimizer, "mse")
        before = statistics.tensors
        model.fit(*data(hvd.rank()), batch_size=16, epochs=2, verbose=0, shuffle=False)
        assert statistics.tensors - before == (2 * 2 * 8 if pair.included() else 0)
        mine = tf.concat([tf.reshape(v, [-1]) for v in model.trainable_variables], 0)
        rows = hvd.allgather(mine[None], name=f"replicas.{levels}").numpy()
        assert (rows[0] == rows[2]).all()
        assert (rows[0] != rows[1]).any()
    finally:
        hvd.remove_process_set(pair)


@pytest.mark.parametrize("as_dense", [False, True])
def test_embedding(hvd, as_dense):
    """Its sparse gradient is compressed when it is made dense."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Embedding(100, 40, input_length=1), keras.layers.Flatten()]
    )
    optimizer = horovod.tensorflow.keras.DistributedOptimizer(
        keras.optimizers.legacy.SGD(1.0), compression=GlobalQSGD, sparse_as_dense=as_dense
    )
    model.compile(optimizer, "mse")
    before = statistics.tensors
    rows = np.arange(64).reshape(-1, 1) + hvd.rank()
    model.fit(rows, np.zeros((64, 40)), batch_size=16, verbose=0)
    assert statistics.tensors - before == 4 * as_dense
    assert replicas_identical(hvd, model.trainable_variables)


def test_clipping_acts_on_what_was_exchanged(hvd):
    """The norm that is clipped is that of the mean, the same on all ranks."""
    optimizer = horovod.tensorflow.keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0, clipnorm=0.5), compression=GlobalQSGD
    )
    model = network()
    model.compile(optimizer, "mse")
    before = [v.numpy() for v in model.trainable_variables]
    x, y = data(hvd.rank(), batches=1)
    model.fit(x, 100 * y, batch_size=16, verbose=0)
    assert replicas_identical(hvd, model.trainable_variables)
    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert np.linalg.norm(variable - old) == pytest.approx(0.5, rel=1e-3)


def test_optimizer_of_version_1_in_a_session(hvd):
    """``tf.compat.v1.train``: gradients in a graph without functions."""
    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", initializer=tf.zeros([2048]))
        aim = tf.compat.v1.placeholder(tf.float32, [2048])
        optimizer = hvd.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.25), compression=GlobalQSGD
        )
        train = optimizer.minimize(tf.reduce_sum((weight - aim) ** 2))
        before = statistics.tensors
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(10):
                session.run(train, {aim: np.full(2048, 1.0 + hvd.rank(), np.float32)})
            result = session.run(weight)
    assert statistics.tensors - before == 10
    np.testing.assert_allclose(result, (1 + hvd.size()) / 2, atol=0.05)


@pytest.mark.parametrize("average", [False, True])
def test_aggregation_of_passes(hvd, average):
    """What is applied at every third pass: the sum or the mean of three, exactly."""
    optimizer = horovod.tensorflow.keras.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=GlobalQSGD, backward_passes_per_step=3,
        average_aggregated_gradients=average,
    )  # fmt: skip
    variable = tf.Variable(tf.zeros([2048]))

    @tf.function
    def step():
        gradients = optimizer.compute_gradients(lambda: tf.reduce_sum(2 * variable), [variable])
        optimizer.apply_gradients(gradients)

    optimizer.build([variable])
    for passes in range(1, 7):
        step()
        applied = passes // 3 * (2.0 if average else 6.0)
        np.testing.assert_array_equal(variable, np.full(2048, -applied, np.float32))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(hvd, policy):
    """With float16 Keras scales the loss; an overflow on one rank is skipped on all of them.

    The scaling goes around Horovod's optimizer: the other order Horovod itself refuses.
    """
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=GlobalQSGD)
    half = policy == "mixed_float16"
    if half:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
    keras.mixed_precision.set_global_policy(policy)
    try:
        model, losses = fit(hvd, optimizer)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert losses[-1] < 0.9 * losses[0]
    if half:
        x, y = data(hvd.rank(), batches=1)
        before = [v.numpy() for v in model.trainable_variables]
        model.fit(x, y * (np.inf if hvd.rank() == 0 else 1), batch_size=16, verbose=0)
        assert optimizer.loss_scale.numpy() == 512
        for variable, old in zip(model.trainable_variables, before, strict=True):
            np.testing.assert_array_equal(variable, old)


def test_callbacks(hvd):
    """Ranks that start apart are brought together, and report the same metric."""
    keras_hvd = horovod.tensorflow.keras
    optimizer = keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=GlobalQSGD)
    model = network()
    for variable in model.variables:
        variable.assign_add(tf.fill(variable.shape, 0.01 * hvd.rank()))
    model.compile(optimizer, "mse")
    callbacks = [
        keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras_hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(*data(hvd.rank()), batch_size=16, verbose=0, callbacks=callbacks)
    assert replicas_identical(hvd, model.trainable_variables)
    assert replicas_identical(hvd, [tf.constant(history.history["loss"])])


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_load_model(hvd, tmp_path):
    """A model saved with the optimizer goes on with it."""
    keras_hvd = horovod.tensorflow.keras
    model, _losses = fit(
        hvd,
        keras_hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, 0.9), compression=GlobalQSGD),
    )
    model.save(tmp_path / "model.h5")
    again = keras_hvd.load_model(str(tmp_path / "model.h5"), compression=GlobalQSGD(bits=6))
    before = statistics.word_bytes
    again.fit(*data(hvd.rank()), batch_size=16, verbose=0)
    assert statistics.word_bytes > before
    assert replicas_identical(hvd, again.trainable_variables)


def test_xla_in_compile_is_refused_with_the_fix(hvd):
    # Horovod keeps what it has traced for a compressor: here one that no other test has.
    compression = GlobalQSGD(seed=4711)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), compression=compression)
    model = network()
    model.compile(optimizer, "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True out of"):
        model.fit(*data(hvd.rank()), batch_size=16, verbose=0)
