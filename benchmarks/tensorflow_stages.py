"""What encode and decode cost inside a ``tf.function``, against the kernels alone.

    python benchmarks/tensorflow_stages.py

Both take turns in one process. The bare kernel is called directly, without the plugin's worker
thread; it reads the memory of the same tensors, and writes to memory like the stage's: what is
aligned otherwise, or in pages of another size, takes a tenth more or less time. The function has
one gradient, or with ``--gradients`` several, as a step has: to call one just after a large
kernel costs most of a millisecond, whatever it does.
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

from horovod_gqsgd.codecs import Round
from horovod_gqsgd.config import Config
from horovod_gqsgd.tensorflow.exchange import Exchange
from horovod_gqsgd.tensorflow.memory import Store
from horovod_gqsgd.tensorflow.stage import _array, stage
from horovod_gqsgd.transports.horovod_tensorflow import Call

WORDS = Round("words", "sum")


class Gradient:
    """One of them, with what has been agreed upon for it."""

    def __init__(self, config: Config, size: int, name: str) -> None:
        self.exchange = Exchange(config, Call(name, Average, 1.0, 1.0, False, 0), [tf.float32])
        self.x, self.sizes = tf.random.normal([size]), np.array([size])
        head, sums = stage(self.exchange.norm, [0 * tf.constant(1), self.x], [tf.int32, tf.float64])
        [words] = self.encoded(head, sums)
        # A copy each: as after an allreduce, nobody shares memory with the exchange.
        self.head, self.sums, self.words = (tf.constant(t.numpy()) for t in (head, sums, words))
        self.plan = self.exchange.plan([size])
        self.agreed = self.plan.read(self.head.numpy(), self.sums.numpy())
        self.array, self.sent = _array(self.x), _array(self.words)
        memory = Store()
        self.packed = memory.buffer(0, name, "words", self.sent.size, np.int32)
        self.output = memory.buffer(0, name, "output", size, np.float32)

    def bare_encode(self) -> None:
        """The kernel alone."""
        self.plan.encode([self.array], self.agreed, self.packed)

    def bare_decode(self) -> None:
        """The kernel alone."""
        self.plan.decode(self.sent, self.agreed, [self.output])

    def encode(self) -> Any:
        """A node of a graph."""
        return self.encoded(self.head, self.sums)

    def encoded(self, head: Any, sums: Any) -> Any:
        """The words."""
        inputs = [head, sums, self.sizes, head, self.x]
        return self.exchange.stage("encode", inputs, [tf.int32], WORDS)

    def decode(self) -> Any:
        """A node of a graph."""
        inputs = [self.head, self.sums, self.sizes, self.words]
        return self.exchange.stage("finish", inputs, [tf.float32], WORDS)


def cases(config: Config, size: int, count: int) -> dict[str, tuple[Callable, Callable]]:
    """Bare kernels and stages of a graph, by what they do."""
    gradients = [Gradient(config, size, f"x{i}") for i in range(count)]

    def bare_encode() -> None:
        for gradient in gradients:
            gradient.bare_encode()

    def bare_decode() -> None:
        for gradient in gradients:
            gradient.bare_decode()

    encode = tf.function(lambda: [gradient.encode() for gradient in gradients])
    decode = tf.function(lambda: [gradient.decode() for gradient in gradients])
    return {"encode": (bare_encode, encode), "decode": (bare_decode, decode)}


def seconds(function: Callable[[], object]) -> float:
    """Of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=25_000_000)
    parser.add_argument("--gradients", type=int, default=1, help="in one function")
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--parameters", default="bits=8", help="of GlobalQSGD, e.g. bits=6")
    options = parser.parse_args()
    hvd.init()
    config, count = Config(**parameters(options.parameters)), options.gradients
    for name, (bare, graph) in cases(config, options.size, count).items():
        seconds(bare), seconds(graph)
        pairs = [(seconds(bare), seconds(graph)) for _ in range(options.repeats)]
        alone, inside = (1e3 * median(column) / count for column in zip(*pairs, strict=True))
        ratio = median(theirs / ours for ours, theirs in pairs)
        print(f"{name}: kernel {alone:.1f} ms, in a tf.function {inside:.1f} ms, {ratio:.2f} x")


if __name__ == "__main__":
    main()
