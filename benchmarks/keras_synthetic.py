"""Speed of ``model.fit`` on synthetic images, with one compression or several against each other.

    horovodrun -np 2 python benchmarks/keras_synthetic.py --compression none gqsgd

The flags and the output are those of Horovod's own tensorflow2_keras_synthetic_benchmark.py.
Several compressions take turns, iteration by iteration in the same processes, so that their ratios
hold also on a machine with other work.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, pstdev
from typing import Any

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from compressions import argument, compressor, handed_bytes
from rich.console import Console
from rich.table import Table
from tensorflow import keras

from horovod_gqsgd.tensorflow import statistics

PHASES = ("norm", "encode", "reduce", "decode")


@dataclass
class Contender:
    """A compression with a model of its own, and what was measured."""

    name: str
    model: Any
    batches: Any
    seconds: list[float] = field(default_factory=list)  # per step, one for each iteration
    steps: int = 0
    totals: Counter = field(default_factory=Counter)

    @classmethod
    def create(cls, name: str, batches: Any, options: argparse.Namespace) -> "Contender":
        """Stock Horovod, but for ``compression=``."""
        make = getattr(keras.applications, options.model)
        model = make(weights=None, input_shape=(options.image_size, options.image_size, 3))
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.01), compression=compressor(name, "tensorflow")
        )
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy())
        return cls(name, model, batches)

    def iteration(self, batches: int) -> float:
        """Time ``batches`` steps of ``model.fit``; returns seconds per step."""
        statistics.reset()
        start = time.perf_counter()
        self.model.fit(self.batches, steps_per_epoch=batches, epochs=1, verbose=0)
        self.seconds.append((time.perf_counter() - start) / batches)
        self.steps += batches
        self.totals.update(asdict(statistics))
        return self.seconds[-1]

    def forget(self) -> None:
        """Start measuring anew, after warm-up."""
        self.seconds, self.steps, self.totals = [], 0, Counter()

    def row(self, baseline: "Contender") -> list[str]:
        """Of the closing table; ratios to ``baseline`` iteration by iteration."""
        pairs = zip(self.seconds, baseline.seconds, strict=True)
        plain = sum(4 * int(tf.size(v)) for v in self.model.trainable_variables)
        times = [1e3 * self.totals[f"{phase}_seconds"] / self.steps for phase in PHASES]
        return [
            self.name,
            f"{1e3 * fmean(self.seconds):.0f}",
            f"{median(ours / theirs for ours, theirs in pairs):.3f} x",
            f"{handed_bytes(self.name, plain, self.totals, self.steps):,}",
            *(f"{ms:.1f}" if self.totals["tensors"] else "" for ms in times),
        ]


def arguments() -> argparse.Namespace:
    """Horovod's flags first, then ours."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--fp16-allreduce", action="store_true", help="the same as --compression fp16")
    add("--model", default="ResNet50", help="of tf.keras.applications")
    add("--batch-size", type=int, default=32, help="per process")
    add("--num-warmup-batches", type=int, default=10)
    add("--num-batches-per-iter", type=int, default=10)
    add("--num-iters", type=int, default=10)
    add("--no-cuda", action="store_true")
    add(
        "--compression",
        type=argument,
        nargs="+",
        default=["none"],
        metavar="none|fp16|gqsgd[:name=value,…]",
        help="several are compared with the first",
    )
    add("--image-size", type=int, default=224, help="side of the images in pixels")
    options = parser.parse_args()
    if options.fp16_allreduce:
        options.compression = ["fp16"]
    return options


def measure(contenders: list[Contender], options: argparse.Namespace, say: Callable) -> None:
    """Warm up, then let the contenders take turns, each first as often as the others."""
    for contender in contenders:
        contender.iteration(max(options.num_warmup_batches, 1))
        contender.forget()
    for i in range(options.num_iters):
        turn = i % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            speed = options.batch_size / contender.iteration(options.num_batches_per_iter)
            say(f"Iter #{i}: [{contender.name}] {speed:.1f} img/sec per {options.device}")


def show(contenders: list[Contender], options: argparse.Namespace) -> None:
    """Horovod's closing lines for every contender, and a table of where the time went."""
    for contender in contenders:
        speeds = [options.batch_size / seconds for seconds in contender.seconds]
        mean, spread = fmean(speeds), 1.96 * pstdev(speeds)
        print(f"[{contender.name}] Img/sec per {options.device}: {mean:.1f} +-{spread:.1f}")
        n = hvd.size()
        print(f"Total img/sec on {n} {options.device}(s): {n * mean:.1f} +-{n * spread:.1f}")
    columns = ["compression", "ms per step", "step time", "bytes per step", *PHASES]
    table = Table(*columns, caption="norm to decode: ms of kernels per step and process")
    for contender in contenders:
        table.add_row(*contender.row(contenders[0]))
    Console(width=None if os.isatty(1) else 120).print(table)


def main() -> None:
    """Measure on all ranks, report on rank 0."""
    options = arguments()
    os.environ.setdefault("HOROVOD_CACHE_CAPACITY", str(1024 * len(options.compression)))
    hvd.init()
    gpus = [] if options.no_cuda else tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[hvd.local_rank() :][:1], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(
        max(1, (os.cpu_count() or 1) // hvd.local_size())
    )
    options.device = "GPU" if gpus else "CPU"

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    shape = (options.batch_size, options.image_size, options.image_size, 3)
    images = tf.random.uniform(shape)
    labels = tf.random.uniform([options.batch_size], maxval=1000, dtype=tf.int64)
    batches = tf.data.Dataset.from_tensors((images, labels)).cache().repeat()
    say(f"Model: {options.model}\nBatch size: {options.batch_size}")
    say(f"Number of {options.device}s: {hvd.size()}")
    contenders = [Contender.create(name, batches, options) for name in options.compression]
    measure(contenders, options, say)
    if hvd.rank() == 0:
        show(contenders, options)


if __name__ == "__main__":
    main()
