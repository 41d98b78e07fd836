"""What goes wrong on some ranks is told on all, in terms of the job, and nobody is left waiting."""

import pytest
import tensorflow as tf

from horovod_gqsgd.tensorflow import GlobalQSGD
from tests.parallel.tensorflow.specification import same
from tests.parallel.tensorflow.test_allreduce import ERRORS


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
