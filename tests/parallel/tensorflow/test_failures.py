"""What goes wrong on some ranks is told on all, in terms of the job, and nobody is left waiting."""

import contextlib

import pytest
import tensorflow as tf

from horovod_gqsgd import shards
from horovod_gqsgd.tensorflow import GlobalQSGD, register_reduction
from tests.parallel.tensorflow.specification import same
from tests.parallel.tensorflow.test_allreduce import ERRORS
from tests.parallel.tensorflow.test_exponential import median, registry

__all__ = ["registry"]  # a fixture


@pytest.mark.np(3)
@pytest.mark.parametrize("norm", ["inf", 2])
@pytest.mark.parametrize("levels", ["linear", "exponential"])
def test_errors_in_a_process_set_name_the_ranks_of_the_job(hvd, traced, levels, norm):
    some = hvd.add_process_set([1, 2])
    try:
        if some.included():
            compression = GlobalQSGD(levels=levels, norm=norm, seed=hvd.rank())
            options = {"name": "set", "process_set": some, "compression": compression}
            average = traced(lambda x: hvd.allreduce(x, **options))
            with pytest.raises(ERRORS, match="seed is 1 on rank 1; 2 on rank 2"):
                average(tf.ones(2000))
    finally:
        hvd.remove_process_set(some)
    assert same(hvd.allreduce(tf.ones(5)), tf.ones(5))


def test_a_gathered_group_fails_where_the_reduction_does(hvd, traced, registry, monkeypatch):
    """Every rank reduces for itself: the others have their result, and all go on together."""
    monkeypatch.setattr(shards, "GATHER_LIMIT", 2**62)

    def fragile(codes, levels, dither):
        if hvd.rank() == 0 and fail:
            raise KeyError("lost")
        return median(codes, levels, dither)

    register_reduction("fragile", fragile)
    mine = [tf.ones(2000), tf.ones(3), tf.ones(3000)]
    options = {"compression": GlobalQSGD(levels="exponential", reduction="fragile")}
    average = traced(lambda xs: hvd.grouped_allreduce(xs, name="fragile", **options))
    for fail in (False, True, True, False):
        told = contextlib.nullcontext()
        if fail and hvd.rank() == 0:
            told = pytest.raises(ERRORS, match="KeyError: 'lost'")
        with told:
            assert all(map(same, average(mine), mine))
    assert same(hvd.allreduce(tf.ones(5)), tf.ones(5))


def test_a_group_with_small_tensors_has_its_gradient(hvd, traced):
    """However the results of a group are held back until all of it has been sent."""
    compression = GlobalQSGD(levels="exponential")
    mine = [tf.ones(2000), tf.ones(3)]

    def slopes(*xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            first, second = hvd.grouped_allreduce([*xs], name="slopes", compression=compression)
            total = tf.reduce_sum(2.0 * first) + tf.reduce_sum(3.0 * second)
        return tape.gradient(total, xs)

    assert all(map(same, traced(slopes)(*mine), [2.0 * mine[0], 3.0 * mine[1]]))
