"""Softmax regression with a hidden layer on scikit-learn's digits, as a loop with a GradientTape.

    horovodrun -np 2 python examples/tensorflow_tape.py

A Horovod script like any other: the two lines marked (+) are all that compression takes.
"""

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras

from horovod_gqsgd.tensorflow import GlobalQSGD  # (+)


def main() -> None:
    """Train, validate, report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    data = load_digits()
    order = tf.random.experimental.stateless_shuffle(tf.range(len(data.target)), seed=[0, 0])
    images = tf.gather(tf.cast(data.data / 16, tf.float32), order)
    labels = tf.gather(tf.cast(data.target, tf.int32), order)
    mine = slice(hvd.rank(), 1400, hvd.size())
    batches = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine]))
    batches = batches.shuffle(1400).batch(options.batch, drop_remainder=True)

    model = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    model.build((None, 64))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        tape = hvd.DistributedGradientTape(
            tape,
            compression=GlobalQSGD,  # (+)
        )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(options.epochs):
        for x, y in batches:
            step(x, y)

    if hvd.rank() == 0:
        right = tf.argmax(model(images[1400:]), 1, tf.int32) == labels[1400:]
        print(f"accuracy {tf.reduce_mean(tf.cast(right, tf.float32)):.1%}")


if __name__ == "__main__":
    main()
