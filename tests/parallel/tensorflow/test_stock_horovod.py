"""What this project relies on in Horovod itself, for TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "tf.function"])
def test_allreduce_averages(hvd, traced):
    def average(x):
        return hvd.allreduce(x, name=f"stock.average.{traced}")

    mine = tf.range(10.0) * (hvd.rank() + 1.0)
    mean = (tf.function(average) if traced else average)(mine)
    np.testing.assert_allclose(mean, np.arange(10.0) * (hvd.size() + 1) / 2, rtol=1e-6)


def test_int32_sums_wrap_nothing(hvd):
    # Packed words use all 32 bits: the sum must be exact up to both ends.
    low, high = tf.int32.min, tf.int32.max
    share = tf.constant([-(-low // hvd.size()), high // hvd.size(), hvd.rank()], tf.int32)
    total = hvd.allreduce(share, op=hvd.Sum, name="stock.int32")
    ranks = range(hvd.size())
    expected = [-(-low // hvd.size()) * hvd.size(), high // hvd.size() * hvd.size(), sum(ranks)]
    assert total.dtype == tf.int32
    assert total.numpy().tolist() == expected


def test_alltoall_of_bytes(hvd):
    splits = np.arange(1, hvd.size() + 1, dtype=np.int32)
    sent = tf.fill([splits.sum()], tf.constant(hvd.rank(), tf.uint8))
    received, sizes = hvd.alltoall(sent, splits=splits, name="stock.alltoall")
    assert received.numpy().tolist() == [
        r for r in range(hvd.size()) for _ in range(hvd.rank() + 1)
    ]
    assert sizes.numpy().tolist() == [hvd.rank() + 1] * hvd.size()


def test_allgather_of_unequal_lengths(hvd):
    mine = tf.fill([hvd.rank() + 1], tf.constant(hvd.rank(), tf.uint8))
    everything = hvd.allgather(mine, name="stock.allgather")
    assert everything.numpy().tolist() == [r for r in range(hvd.size()) for _ in range(r + 1)]


def test_gradient_tape_averages(hvd):
    weight = tf.Variable(2.0)
    with tf.GradientTape() as plain:
        loss = weight * (hvd.rank() + 1.0)
    [gradient] = hvd.DistributedGradientTape(plain).gradient(loss, [weight])
    np.testing.assert_allclose(gradient, (hvd.size() + 1) / 2, rtol=1e-6)


@pytest.mark.np(3)
def test_process_set_of_two_out_of_three(hvd):
    pair = hvd.add_process_set([0, 2])
    try:
        if pair.included():
            total = hvd.allreduce(
                tf.constant([float(hvd.rank())]), op=hvd.Sum, process_set=pair, name="stock.pair"
            )
            assert total.numpy().tolist() == [2.0]
    finally:
        hvd.remove_process_set(pair)
