"""A small CNN on scikit-learn's digits with Keras, Horovod and compressed gradients.

    horovodrun -np 2 python examples/keras_fit.py

A Horovod script like any other: the two lines marked (+) are all that compression takes.
"""

import argparse

import horovod.tensorflow.keras as hvd
import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras

from horovod_gqsgd.tensorflow import GlobalQSGD  # (+)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images of 8 x 8 pixels in a fixed random order, and their labels."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.images[order, :, :, None].astype(np.float32) / 16, data.target[order]


def network() -> keras.Model:
    """151 K parameters, most of them in one layer."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPool2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> None:
    """Train, validate, report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    images, labels = digits()
    train, valid = slice(hvd.rank(), 1400, hvd.size()), slice(1400, None)
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9),
        compression=GlobalQSGD,  # (+)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = network()
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(
        images[train], labels[train], options.batch, options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )  # fmt: skip
    if hvd.rank() == 0:
        print(f"accuracy {model.evaluate(images[valid], labels[valid], verbose=0)[1]:.1%}")


if __name__ == "__main__":
    main()
