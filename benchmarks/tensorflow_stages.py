"""What encode and decode cost inside a ``tf.function``, against the kernels alone.

    python benchmarks/tensorflow_stages.py

Both take turns on the same data, in one process.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from compressions import parameters
from horovod.tensorflow.mpi_ops import Average

from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow.linear import Linear
from horovod_gqsgd.tensorflow.native import Call
from horovod_gqsgd.tensorflow.stage import stage
from horovod_gqsgd.tensorflow.worker import on_worker


def cases(config: Config, size: int) -> dict[str, tuple[Callable, Callable]]:
    """Bare kernels and stages of a graph, by what they do."""
    exchange = Linear(config, Call("x", Average, 1.0, 1.0, False, 0), [tf.float32])
    x, sizes = tf.random.normal([size]), np.array([size])
    head, sums = stage(exchange.norm, [0 * tf.constant(1), x], [tf.int32, tf.float64])
    [words] = stage(exchange.encode, [head, sums, x], [tf.int32])
    # A copy each: as after an allreduce, nobody shares memory with the exchange.
    head, sums, words = (tf.constant(tensor.numpy()) for tensor in (head, sums, words))

    bucket = exchange.bucket([size])
    agreed = bucket.read(head.numpy(), sums.numpy())
    array, sent = x.numpy(), words.numpy()
    packed, output = np.empty_like(sent), np.empty_like(array)

    @tf.function
    def encode(x: Any) -> Any:
        return stage(exchange.encode, [head, sums, x], [tf.int32])

    @tf.function
    def decode(words: Any) -> Any:
        return stage(exchange.decode, [head, sums, sizes, words], [tf.float32])

    return {
        "encode": (on_worker(lambda: bucket.encode([array], agreed, packed)), lambda: encode(x)),
        "decode": (
            on_worker(lambda: bucket.decode(sent, agreed, [output])),
            lambda: decode(words),
        ),
    }


def seconds(function: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--parameters", default="bits=8", help="of GlobalQSGD, e.g. bits=6")
    options = parser.parse_args()
    hvd.init()
    for name, (bare, graph) in cases(
        Config(**parameters(options.parameters)), options.size
    ).items():
        seconds(bare), seconds(graph)
        pairs = [(seconds(bare), seconds(graph)) for _ in range(options.repeats)]
        alone, inside = (1e3 * median(column) for column in zip(*pairs, strict=True))
        ratio = median(theirs / ours for ours, theirs in pairs)
        print(f"{name}: kernel {alone:.1f} ms, in a tf.function {inside:.1f} ms, {ratio:.2f} x")


if __name__ == "__main__":
    main()
