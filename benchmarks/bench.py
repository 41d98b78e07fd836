"""The whole comparison on virtual hosts, resumable: `make bench`, and `make bench-quick`.

Every cell is one job on the cluster: a workload at one rate of the links, in which compressors
take turns. Finished cells are kept in ``--results`` and not repeated, whatever state of the code
they were measured at (a run tells which those are; to measure one again, remove it from that file).
At the end the page and the plots in ``--docs`` are written from all of them, also with ``--only``.
Needs virtual hosts (docs/cluster.md), and root for cells in which hosts have shares of CPU time.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_report import write_report
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from virtual_hosts.problem import Problem, isolation

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
GQSGD = ["gqsgd", "gqsgd:levels=exponential,bits=4"]
BARE = ["bare", "bare:bits=5", "bare:levels=exponential,bits=4"]
ALL = [
    "alone", *BARE, "none", "fp16", "ddp", "ddp:fp16", "ddp:powersgd", "gqsgd", "gqsgd:bits=6",
    "gqsgd:bits=5", "gqsgd:levels=exponential,bits=8", "gqsgd:levels=exponential,bits=4",
]  # fmt: skip
SOME = ["alone", "none", "fp16", *GQSGD]
HEADLINE = ["alone", "none", "fp16", "ddp:fp16", "gqsgd", "gqsgd:bits=5", GQSGD[1]]
#: Model, its size for two cores, contenders, rates; what matters most comes first.
WORKLOADS = {
    "embedding": (["--batch-size", "32"], ALL, ["200mbit", "1gbit", "none", "500mbit"]),
    "transformer": (["--batch-size", "4"], SOME, ["200mbit", "1gbit", "none"]),
    "resnet50": (["--batch-size", "8"], SOME, ["200mbit", "1gbit", "none"]),
}


@dataclass(frozen=True)
class Cell:
    """One job; its result is kept under ``key``."""

    key: str
    hosts: int
    rate: str
    command: list[str]
    cpus: float | None = None  # of each host, in cores


def contests(quick: bool, hosts: int) -> Iterator[Cell]:
    """A contest for every workload and rate; the quick ones are the headline."""
    for model, (sizes, contenders, rates) in WORKLOADS.items():
        if quick and model != "embedding":
            continue
        names = HEADLINE if quick else contenders
        turns = ["--steps", "3", "--rounds", "4"] if quick else ["--steps", "4", "--rounds", "12"]
        if model != "embedding":  # steps take seconds
            turns = ["--steps", "2", "--rounds", "7"]
        for rate in [r for r in rates if not quick or r in ("1gbit", "200mbit")]:
            command = ["contest.py", "--model", model, *sizes, *turns, "--contenders", *names]
            yield Cell(f"{model}, {rate}{', quick' if quick else ''}", hosts, rate, command)


def pairs() -> Iterator[Cell]:
    """The workloads on as many hosts as there are cores, where ranks do not share them."""
    for model, (sizes, _contenders, _rates) in WORKLOADS.items():
        turns = ["--steps", "2", "--rounds", "24"]
        names = ["alone", "none", *GQSGD]
        for rate in ("none", "4gbit", "1gbit"):
            command = ["contest.py", "--model", model, *sizes, *turns, "--contenders", *names]
            yield Cell(f"{model} on 2 hosts, {rate}", 2, rate, command)


def growth() -> Iterator[Cell]:
    """Hosts, parameters and tensors, one of them varied at a time.

    Where hosts are varied each has its share of the cores, however many there are; eight of them
    leave some of two for the kernel, and so are held back by nothing but their shares.
    """
    share = 0.2
    cases: list[tuple[int, float | None, int, int]]
    cases = [(hosts, share, 10, 100) for hosts in (2, 4, 8)]
    sizes = [(10, 100), (1, 100), (100, 100), (10, 10), (10, 1000)]
    cases += [(4, None, millions, tensors) for millions, tensors in sizes]
    for hosts, cpus, millions, tensors in cases:
        command = ["growth.py", "--millions", str(millions), "--tensors", str(tensors)]
        where = f"{hosts} hosts of {cpus} cores" if cpus else f"{hosts} hosts"
        key = f"growth, {where}, {millions} M, {tensors} tensors"
        yield Cell(key, hosts, "none", command, cpus)


def memory() -> Iterator[Cell]:
    """A job for every compressor: what one leaves behind would hide what the next one takes."""
    for model in ("embedding", "resnet50"):
        for name in ("none", "fp16", *GQSGD):
            command = ["memory.py", "--model", model, "--compression", name]
            yield Cell(f"memory, {model}, {name}", 2, "none", command)


def run(cell: Cell, say: Callable[[str], None]) -> object:
    """The result of a cell's job; ``say`` is called with what rank 0 prints."""
    with tempfile.TemporaryDirectory() as folder:
        result, account = Path(folder, "result.json"), Path(folder, "account.json")
        script, *rest = cell.command
        share = ["--cpus", str(cell.cpus)] if cell.cpus else []
        command = [
            sys.executable, str(HERE / "cluster.py"), "--hosts", str(cell.hosts),
            "--rate", cell.rate, *share, "--json", str(account), "--",
            sys.executable, str(HERE / script), "--json", str(result), *rest,
        ]  # fmt: skip
        output = []
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert process.stdout
        try:
            for line in process.stdout:
                output.append(line)
                if match := re.match(r"\[0\]<stdout>:(.*)", line):
                    say(match[1])
        finally:
            process.terminate()
            process.wait()
        if process.returncode:
            raise Problem(f"{cell.key}: status {process.returncode}\n{''.join(output[-40:])}")
        return json.loads(result.read_text())


def machine() -> str:
    """What the figures were measured on."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores of {model[1] if model else platform.processor()}"


def commit() -> str:
    """What state of the code was measured, pages aside; empty outside of a checkout."""
    with contextlib.suppress(OSError):
        found = _git("describe", "--always")
        changed = _git("diff", "HEAD", "--name-only", "--", ".", ":!docs", ":!*.md")
        return f"{found}-dirty" if changed else found
    return ""


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help="the headline only, in at most ten minutes")
    add("--hosts", type=int, default=4)
    add("--only", default="", metavar="TEXT", help="run only cells whose names contain this")
    add("--minutes", type=float, help="begin no cell after this time; a later run goes on")
    add("--results", type=Path, default=ROOT / "output" / "bench.json")
    add("--docs", type=Path, help="folder for the report (default: docs, quick: output)")
    return parser.parse_args()


def plan(options: argparse.Namespace) -> list[Cell]:
    """All cells of the report, whether they are to be run now or not."""
    cells = list(contests(options.quick, options.hosts))
    return cells if options.quick else [*cells, *memory(), *pairs(), *growth()]


def kept(cells: Sequence[Cell], found: Mapping[str, Any], now: str) -> Iterator[str]:
    """What a run that goes on should say: which finished cells other states of the code gave."""
    others: dict[str, list[str]] = {}
    for cell in cells:
        if cell.key in found and found[cell.key]["commit"] != now:
            others.setdefault(found[cell.key]["commit"], []).append(cell.key)
    for other, keys in others.items():
        yield f"Kept from {other or 'an unknown state'}, this is {now}: {'; '.join(keys)}"


def measure(
    cells: Sequence[Cell], found: dict[str, Any], path: Path, minutes: float | None
) -> None:
    """Run the cells that are not ``found``, and keep each result at once."""
    start = time.monotonic()
    missing = [cell for cell in cells if cell.key not in found]
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    with progress:
        done = len(cells) - len(missing)
        bar = progress.add_task("", total=len(cells), completed=done, said="")
        for cell in missing:
            if minutes and time.monotonic() - start > 60 * minutes:
                break
            progress.update(bar, description=cell.key, said="starting")
            result = run(cell, lambda text: progress.update(bar, said=text))
            found[cell.key] = {
                "result": result, "hosts": cell.hosts, "rate": cell.rate, "cpus": cell.cpus,
                "command": cell.command, "date": time.strftime("%Y-%m-%d"), "machine": machine(),
                "commit": commit(),
            }  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(found, indent=1))
            partial.replace(path)
            progress.update(bar, advance=1, said="")


def main() -> int:
    """Run the cells that are missing, then report all that are there."""
    options = arguments()
    isolation()  # or say now what is missing
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the cluster
    cells = plan(options)
    found = json.loads(options.results.read_text()) if options.results.exists() else {}
    chosen = [cell for cell in cells if options.only in cell.key]
    for line in kept(cells, found, commit()):
        print(line)
    if os.geteuid() and (shares := [cell.key for cell in chosen if cell.cpus]):
        print(f"Left out, as shares of CPU time take root (sudo): {'; '.join(shares)}")
        chosen = [cell for cell in chosen if not cell.cpus]
    measure(chosen, found, options.results, options.minutes)
    docs = options.docs or ROOT / ("output" if options.quick else "docs")
    if finished := {cell.key: found[cell.key] for cell in cells if cell.key in found}:
        left = [cell.key for cell in cells if cell.key not in found]
        print(write_report(finished, docs, options.quick, left))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
