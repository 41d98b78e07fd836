"""The elastic job of `train` for TensorFlow and Keras: graphs stay while the world changes."""

import os
import signal
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
import tensorflow as tf
from tensorflow import keras

from horovod_gqsgd.tensorflow import GlobalQSGD
from tests.parallel.tensorflow.specification import (
    expected,
    gradient,
    replicas_identical,
    same,
)

HOSTS, LOG = Path(sys.argv[1]), Path(sys.argv[2])
GROW, LOSE, END = 4, 8, 12
# Horovod takes an error for one to recover from if it finds the name of its operation in the text.
SCHEMES = {
    "HorovodAllreduce.linear": GlobalQSGD(),
    "HorovodAllreduce.exponential": GlobalQSGD(levels="exponential"),
}

hvd.init()
model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(40)])
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(model.trainable_variables)


@tf.function
def average(x: tf.Tensor) -> list[tf.Tensor]:
    """With every scheme."""
    return [hvd.allreduce(x, name=name, compression=c) for name, c in SCHEMES.items()]


@tf.function
def learn(x: tf.Tensor) -> None:
    """One step of training."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    tape = hvd.DistributedGradientTape(tape, compression=GlobalQSGD)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def check_average(step: int) -> None:
    """Counters go on when the world changes; a new worker adopts those of the others."""
    everyones = [gradient(rank, 3000) for rank in range(hvd.size())]
    results = average(everyones[hvd.rank()])
    for (name, compression), result in zip(SCHEMES.items(), results, strict=True):
        assert same(result, expected(everyones, compression.config, name, step)), (name, step)


@hvd.elastic.run
def train(state):
    while state.batch < END:
        size = hvd.size()
        if state.batch == GROW and size == 2:
            HOSTS.write_text("localhost:2\n127.0.0.1:1\n")
            while True:  # until Horovod tells that the hosts have changed
                time.sleep(0.2)
                state.check_host_updates()
        if state.batch == LOSE and size == 3 and os.environ["HOROVOD_HOSTNAME"] == "127.0.0.1":
            # Not before the others wait for it: what is handed to Horovod in the moment in which
            # its thread ends is never completed (operations.cc: shut_down is not read under the
            # lock of the queue).
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        check_average(state.batch)
        learn(tf.fill([4, 40], float(hvd.rank())))
        assert replicas_identical(hvd, model.trainable_variables)
        if hvd.rank() == 0:
            with LOG.open("a") as log:
                log.write(f"{state.batch} {hvd.size()}\n")
        state.batch += 1
        state.commit()


train(hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0))
