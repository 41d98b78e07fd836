"""The ranks of `make bench`: contenders that take turns, at one rate of the links.

    cluster.py --hosts 4 --rate 200mbit -- python benchmarks/contest.py --json FILE
        --model embedding --contenders alone none fp16 gqsgd ddp

A round gives every contender a few steps, in an order that changes from round to round; ratios
of one round hold whatever else the machine does. Of every round counts the slowest rank. Bytes
are those that left the host's interface, and those that its link counted against its rate. At the
end stand medians of the rounds.
"""

import argparse
import json
import os
import shutil
import subprocess
import time
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

import horovod.torch as hvd
import torch
import torch.distributed as dist
from contenders import Contender, contender
from meeting import meet
from models import MODELS, workload
from traffic import COUNTER, interface_bytes

from horovod_gqsgd import sections
from horovod_gqsgd.torch import statistics

PHASES = ("norm", "encode", "reduce", "decode")


@dataclass
class Record:
    """What a contender took on this rank: per step, one value for each round."""

    seconds: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    carried: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    totals: Counter = field(default_factory=Counter)
    steps: int = 0

    def turn(self, racer: Contender, steps: int) -> None:
        """Let it train some steps, and note what that took."""
        statistics.reset()
        carried = carried_bytes()  # which takes some ms: before the ranks meet
        meet()
        sent, cpu, start = interface_bytes(), time.process_time(), time.perf_counter()
        for _ in range(steps):
            racer.step()
        self.seconds.append((time.perf_counter() - start) / steps)
        meet()
        self.cpu.append((time.process_time() - cpu) / steps)
        self.sent.append((interface_bytes() - sent) / steps)
        self.carried.append((carried_bytes() - carried) / steps)
        self.totals.update(asdict(statistics))
        self.steps += steps

    def result(self) -> dict:
        """Ready for JSON; phases of compression in seconds per step."""
        phases = {phase: self.totals[f"{phase}_seconds"] / self.steps for phase in PHASES}
        traffic = {"sent": self.sent, "carried": self.carried}
        return {"seconds": self.seconds, **traffic, "cpu": fmean(self.cpu), **phases}


def carried_bytes() -> int:
    """Bytes that this host's link has carried, with the headers of all segments; 0 if unlimited.

    The kernel hands segments on by the dozen, under a single header for the interface to count.
    """
    if not (COUNTER.exists() and shutil.which("tc")):
        return 0
    show = ["tc", "-statistics", "-json", "qdisc", "show", "dev", "eth0"]
    shown = subprocess.run(show, capture_output=True, check=True).stdout
    return json.loads(shown)[0]["bytes"]


def joined(ranks: list[dict]) -> dict:
    """One result of those of all ranks: the slowest for times of rounds, means for the rest."""
    slowest = [max(values) for values in zip(*(r["seconds"] for r in ranks), strict=True)]
    traffic = {key: fmean(fmean(r[key]) for r in ranks) for key in ("sent", "carried")}
    means = {key: fmean(r[key] for r in ranks) for key in ("cpu", *PHASES)}
    return {"seconds": slowest, **traffic, **means}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", choices=MODELS, default="embedding")
    add("--batch-size", type=int, default=32)
    add("--image-size", type=int, default=64)
    add("--sequence", type=int, default=64)
    add("--contenders", nargs="+", default=["alone", "none", "fp16", "gqsgd"])
    add("--steps", type=int, default=4, help="of a turn")
    add("--rounds", type=int, default=8)
    add("--section", type=int, default=sections.CODES // 1024, metavar="KIB",
        help="of exponential codes that travel in one alltoall")  # fmt: skip
    add("--json", type=Path, required=True)
    options = parser.parse_args()
    if options.section < 16:
        parser.error("a section has at least 16 KiB")
    return options


def main() -> None:
    """Measure on all ranks, write on rank 0."""
    warnings.filterwarnings("ignore", module="torch.distributed")
    options = arguments()
    sections.CODES = 1024 * options.section
    os.environ.setdefault("HOROVOD_CACHE_CAPACITY", str(1024 * len(options.contenders)))
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.size()))  # hosts share the cores
    sizes = (options.batch_size, options.image_size, options.sequence)
    racers = {name: contender(name, workload(options.model, *sizes)) for name in options.contenders}
    names = list(racers)
    records = {name: Record() for name in names}
    for name in names:  # compiles kernels, fills caches
        Record().turn(racers[name], 3)
    for i in range(options.rounds):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            records[name].turn(racers[name], options.steps)
        if hvd.rank() == 0:
            print(f"round {i + 1}/{options.rounds}", flush=True)
    everyone = hvd.allgather_object({name: record.result() for name, record in records.items()})
    if hvd.rank() == 0:
        results = {name: joined([rank[name] for rank in everyone]) for name in names}
        options.json.write_text(json.dumps(results))
        for name, result in results.items():
            taken, sent = 1e3 * median(result["seconds"]), result["sent"] / 1e6
            print(f"{taken:7.1f} ms {sent:8.2f} MB {name}")
    if dist.is_initialized():
        dist.destroy_process_group()  # or the processes would not end


if __name__ == "__main__":
    main()
