"""Does training in Keras end as well with compressed gradients? One task, several seeds.

    horovodrun -np 2 python benchmarks/keras_parity.py

The CNN of examples/keras_fit.py on scikit-learn's digits; the table is that of docs/tensorflow.md.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from compressions import argument, compressor, handed_bytes
from tensorflow import keras

from horovod_gqsgd.tensorflow import statistics

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

from keras_fit import digits, network  # the example that users read

BATCH, TRAIN = 32, 1400


def train(compression: str, seed: int, epochs: int) -> tuple[float, int]:
    """Validation accuracy in %, and bytes handed to Horovod per step."""
    keras.utils.set_random_seed(seed)
    model = network()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), compression=compressor(compression, "tensorflow")
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    images, labels = digits()
    mine = slice(hvd.rank(), TRAIN, hvd.size())
    batches = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine]))
    batches = batches.shuffle(TRAIN, seed=seed).batch(BATCH, drop_remainder=True)
    statistics.reset()
    model.fit(batches, epochs=epochs, verbose=0)
    plain = sum(4 * int(tf.size(v)) for v in model.trainable_variables)
    sent = handed_bytes(compression, plain, vars(statistics), epochs * len(batches))
    return 100 * model.evaluate(images[TRAIN:], labels[TRAIN:], verbose=0)[1], sent


def main() -> None:
    """All runs; a Markdown table on rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--compression", type=argument, nargs="+", default=["none", "fp16", "gqsgd"]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rows = []
    for compression in options.compression:
        runs = [train(compression, seed, options.epochs) for seed in range(options.seeds)]
        found = [accuracy for accuracy, _sent in runs]
        each = ", ".join(f"{accuracy:.1f}" for accuracy in found)
        rows.append(f"| `{compression}` | {fmean(found):.2f} | {each} | {runs[0][1]:,} |")
    if hvd.rank() == 0:
        print("| compression | accuracy, % | seed by seed | bytes per step |\n|---|---|---|---|")
        print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
