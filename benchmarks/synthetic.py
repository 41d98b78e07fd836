"""Speed of training on synthetic data, with one compression or several against each other.

    horovodrun -np 2 python benchmarks/synthetic.py --model resnet50 --compression none gqsgd

The flags and the output are those of Horovod's own pytorch_synthetic_benchmark.py. Several
compressions take turns, iteration by iteration in the same processes, so that their ratios hold
also on a machine with other work. ``--image-size``, ``--sequence`` and ``--batch-size`` fit a
model to the machine.
"""

import argparse
import json
import math
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import horovod.torch as hvd
import torch
from compressions import argument, compressor, sent_bytes
from models import MODELS, Workload, workload
from rich.console import Console
from rich.table import Table

from horovod_gqsgd.torch import statistics

#: A median scatters so many times as much as a mean.
MEDIAN = math.sqrt(math.pi / 2)

PHASES = ("norm", "encode", "wait", "decode")


@dataclass
class Contender:
    """A compression with a model and an optimizer of its own, and what was measured."""

    name: str
    work: Workload
    optimizer: Any
    seconds: list[float] = field(default_factory=list)  # per step, one for each iteration
    synchronize: float = 0.0
    cpu: float = 0.0  # seconds of all threads, also Horovod's
    steps: int = 0
    totals: Counter = field(default_factory=Counter)

    @classmethod
    def create(cls, name: str, work: Workload, op: int) -> "Contender":
        """Stock Horovod, but for ``compression=``; names keep the contenders apart."""
        named = [(f"{name}.{key}", p) for key, p in work.model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(work.model.parameters(), lr=0.01),
            named_parameters=named,
            compression=compressor(name),
            op=op,
        )
        hvd.broadcast_parameters(work.model.state_dict(), root_rank=0)
        return cls(name, work, optimizer)

    def step(self) -> None:
        """Forward, backward, exchange, update; `step` of the optimizer in its two halves."""
        self.optimizer.zero_grad()
        self.work.loss().backward()
        start = time.perf_counter()
        self.optimizer.synchronize()
        self.synchronize += time.perf_counter() - start
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    def iteration(self, batches: int) -> float:
        """Time ``batches`` steps; returns seconds per step."""
        statistics.reset()
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(batches):
            self.step()
        self.seconds.append((time.perf_counter() - start) / batches)
        self.cpu += time.process_time() - cpu
        self.steps += batches
        self.totals.update(asdict(statistics))
        return self.seconds[-1]

    def forget(self) -> None:
        """Start measuring anew, after warm-up."""
        self.seconds, self.synchronize, self.cpu, self.steps = [], 0.0, 0.0, 0
        self.totals = Counter()

    def result(self, batch: int, baseline: "Contender") -> dict[str, Any]:
        """Means and 1.96 σ over the iterations, ratios to ``baseline`` iteration by iteration."""
        speeds = [1 / seconds for seconds in self.seconds]
        ratios = [a / b for a, b in zip(self.seconds, baseline.seconds, strict=True)]
        sends, late = self.totals["sends"], self.totals["late_sends"]
        return {
            "compression": self.name,
            "steps/s": fmean(speeds),
            "steps/s 1.96 sigma": 1.96 * pstdev(speeds),
            f"{self.work.unit}/s per process": batch * fmean(speeds),
            "step time ratio": median(ratios),
            "step time ratio 1.96 sigma": 1.96 * MEDIAN * pstdev(ratios) / len(ratios) ** 0.5,
            "bytes per step": sent_bytes(self.name, self.work.model, self.totals, self.steps),
            "CPU ms": 1e3 * self.cpu / self.steps,
            "synchronize ms": 1e3 * self.synchronize / self.steps,
            **{f"{p} ms": 1e3 * self.totals[f"{p}_seconds"] / self.steps for p in PHASES},
            "sent during backward": 1 - late / sends if sends else None,
            "seconds per step": self.seconds,
        }


def arguments() -> argparse.Namespace:
    """Horovod's flags first, then ours."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default="resnet50")
    add("--batch-size", type=int, default=32, help="per process")
    add("--num-warmup-batches", type=int, default=10)
    add("--num-batches-per-iter", type=int, default=10)
    add("--num-iters", type=int, default=10)
    add("--fp16-allreduce", action="store_true", help="the same as --compression fp16")
    add("--use-adasum", action="store_true", help="Adasum, for which gradients go uncompressed")
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
    add("--sequence", type=int, default=128, help="tokens in a sequence")
    add("--threads", type=int, help="per process; default: an equal share of the cores")
    add("--json", type=Path, help="write all figures to this file")  # fmt: skip
    options = parser.parse_args()
    if options.fp16_allreduce:
        options.compression = ["fp16"]
    if len(set(options.compression)) < len(options.compression):
        parser.error("--compression names the same one twice")
    return options


def measure(contenders: list[Contender], options: argparse.Namespace, say: Any) -> None:
    """Warm up, then let the contenders take turns, each first as often as the others."""
    say("Running warmup...")
    for contender in contenders:
        if options.num_warmup_batches:
            contender.iteration(options.num_warmup_batches)
        contender.forget()
    say("Running benchmark...")
    for i in range(options.num_iters):
        turn = i % len(contenders)
        speeds = {
            c.name: options.batch_size / c.iteration(options.num_batches_per_iter)
            for c in contenders[turn:] + contenders[:turn]
        }
        shown = ", ".join(f"{c.name} {speeds[c.name]:.1f}" for c in contenders)
        say(f"Iter #{i}: {shown} {contenders[0].work.unit}/sec per {options.device}")


def show(results: list[dict[str, Any]], unit: str, device: str) -> None:
    """Horovod's closing lines for every contender, and a table of where the time went."""
    for result in results:
        speed = result[f"{unit}/s per process"]
        spread = speed * result["steps/s 1.96 sigma"] / result["steps/s"]
        print(f"[{result['compression']}] {unit}/sec per {device}: {speed:.1f} +-{spread:.1f}")
        total, size = hvd.size() * speed, hvd.size()
        spread *= size
        print(f"Total {unit}/sec on {size} {device}(s): {total:.1f} +-{spread:.1f}", flush=True)
    columns = ["compression", "steps/s", "step time", "bytes per step", "CPU", "sync", *PHASES]
    caption = "CPU to decode: ms per step and process; early: share of sends before backward ended"
    table = Table(*columns, "early", caption=caption)
    for column in table.columns[1:]:
        column.justify = "right"
    for result in results:
        early = result["sent during backward"]
        times = [f"{result[f'{phase} ms']:.1f}" if early is not None else "" for phase in PHASES]
        table.add_row(
            result["compression"],
            f"{result['steps/s']:.2f} ± {result['steps/s 1.96 sigma']:.2f}",
            f"{result['step time ratio']:.3f} ± {result['step time ratio 1.96 sigma']:.3f}",
            f"{result['bytes per step']:,}",
            f"{result['CPU ms']:.1f}",
            f"{result['synchronize ms']:.1f}",
            *times,
            f"{early:.0%}" if early is not None else "",
        )
    Console(width=None if os.isatty(1) else 120).print(table)


def main() -> None:
    """Measure on all ranks, report on rank 0."""
    options = arguments()
    # A name per gradient and contender, and one more where compressed, stay in Horovod's cache.
    os.environ.setdefault("HOROVOD_CACHE_CAPACITY", str(1024 * len(options.compression)))
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(options.threads or max(1, (os.cpu_count() or 1) // hvd.local_size()))
    cuda = torch.cuda.is_available() and not options.no_cuda
    options.device = "GPU" if cuda else "CPU"
    device = torch.device("cuda", hvd.local_rank()) if cuda else torch.device("cpu")
    sizes = (options.batch_size, options.image_size, options.sequence)
    op = hvd.Adasum if options.use_adasum else hvd.Average
    contenders = [
        Contender.create(name, workload(options.model, *sizes).to(device), op)
        for name in options.compression
    ]

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    work = contenders[0].work
    parameters = f"{work.parameter_count / 1e6:.1f} M parameters, {work.tensor_count} tensors"
    say(f"Model: {options.model} ({parameters})\nBatch size: {options.batch_size}")
    say(f"Number of {options.device}s: {hvd.size()}")
    measure(contenders, options, say)
    if hvd.rank() == 0:
        results = [c.result(options.batch_size, contenders[0]) for c in contenders]
        show(results, work.unit, options.device)
        if options.json:
            kept = {key: value for key, value in vars(options).items() if key != "json"}
            options.json.parent.mkdir(parents=True, exist_ok=True)
            record = {"ranks": hvd.size(), "options": kept, "results": results}
            options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
