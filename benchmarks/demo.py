"""Horovod with and without compressed gradients on a slow network, side by side: `make demo`.

Four trainings of a click-through model take turns in one job and race to the same AUC: on four
virtual hosts, or else on two ranks with paced connections, or else on plain loopback; or on hosts
of yours that share the folder for the results.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

from cluster import rate
from networks import KINDS, Network, best, given
from race import Race
from race_screen import line, live, plot, table
from rich.console import Console
from rich.live import Live
from virtual_hosts.problem import Problem

ROOT = Path(__file__).resolve().parents[1]
LABELS = {
    "none": "none",
    "fp16": "fp16",
    "gqsgd": "GlobalQSGD",
    "gqsgd:bits=5": "GlobalQSGD(bits=5)",
}
LOOK = 0.25  # seconds between two looks for news


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--network", choices=["auto", *KINDS], default="auto",
        help="auto: the first of the others that can be had here")  # fmt: skip
    add("--rate", type=rate, metavar="200mbit",
        help="of every link (200mbit; with --hosts: none, as fast as the network is)")  # fmt: skip
    add("--hosts", metavar="name:slots,…", help="hosts of yours instead, as horovodrun takes them")
    add("--steps", type=int, help="of each training; default: some more than to the target")
    add("--seed", type=int, default=0)
    add("--output", type=Path, default=ROOT / "output" / "demo")
    options = parser.parse_args()
    if options.rate == "none" and not options.hosts:
        parser.error("--rate none is what --network loopback is for")
    return options


def network(options: argparse.Namespace) -> Network:
    """What the user asked for; `Problem` if that cannot be had."""
    if options.hosts:
        label = ", ".join(host.partition(":")[0] for host in options.hosts.split(","))
        return given(options.hosts, label, options.rate or "none")
    kinds = list(KINDS) if options.network == "auto" else [options.network]
    return best(options.rate or "200mbit", kinds)


def train(chosen: Network, race: Race, options: argparse.Namespace, console: Console) -> int:
    """Run the ranks and show the race; returns their status, with their output in ``log.txt``."""
    log, events = options.output / "log.txt", options.output / "events.jsonl"
    events.write_text("")
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    command = [*chosen.launcher, sys.executable, str(ROOT / "benchmarks" / "showcase.py")]
    command += [*chosen.options, "--events", str(events), "--seed", str(options.seed)]
    command += ["--steps", str(options.steps)] if options.steps else []
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--compression", *LABELS], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, env={**os.environ, **settings,
                                           "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip
    try:
        watch(process, race, events, console)
    finally:
        process.terminate()
        process.wait()
    return process.returncode


def watch(process: subprocess.Popen, race: Race, events: Path, console: Console) -> None:
    """Show the race until the process has ended: on a terminal as a picture that moves."""
    start = time.monotonic()
    screen = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with screen or nullcontext(), events.open() as news:
        running = True
        while running:
            running = process.poll() is None
            for event in complete(news):
                race.follow(event)
                if event["event"] == "auc" and not screen:
                    console.print(line(race, race.runners[event["compression"]]), highlight=False)
            if screen:
                doing = "sending initial weights" if race.steps else "starting the ranks"
                view = live(race, f"{doing} ({time.monotonic() - start:.0f} s)")
                screen.update(view, refresh=True)
            if running:
                time.sleep(LOOK)


def complete(news: TextIO) -> Iterator[dict[str, Any]]:
    """Events that have been written since, and to the end of their lines."""
    while True:
        place, text = news.tell(), news.readline()
        if not text.endswith("\n"):
            news.seek(place)
            return
        yield json.loads(text)


def main() -> int:
    """Train, print the table, draw the plot; returns the exit status."""
    options = arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 80)
    start = time.monotonic()
    try:
        chosen = network(options)
    except Problem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    for note in chosen.notes:
        console.print(f"Not the first choice of network: {note}\n", style="yellow", markup=False)
    console.print("Four trainings of a click-through model race to the same AUC, in turns.")
    console.print(f"Network: [bold]{chosen.label}[/]\n", highlight=False)
    race = Race(LABELS)
    status = train(chosen, race, options, console)
    if status:
        log = options.output / "log.txt"
        print("".join(log.open().readlines()[-30:]), file=sys.stderr)
        print(f"error: the training failed; its output is in {log}", file=sys.stderr)
        return 1
    results, picture = options.output / "demo.json", options.output / "demo.png"
    results.write_text(json.dumps(race.results(chosen.label), indent=1) + "\n")
    plot(race, chosen.label, picture)
    console.print(table(race, chosen.label))
    seconds = time.monotonic() - start
    console.print(f"Best possible AUC: {race.best:.3f}, of whoever knows the true odds of a click.")
    console.print(
        f"Took {seconds // 60:.0f}:{seconds % 60:02.0f}.   "
        f"Plot: {os.path.relpath(picture)}   Figures: {os.path.relpath(results)}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the ranks
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
