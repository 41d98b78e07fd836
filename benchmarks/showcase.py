"""The ranks of `make demo`: one task trained with several compressions, which take turns.

    horovodrun -np 2 python benchmarks/showcase.py --compression none gqsgd --events FILE

Turns of a few steps in the same processes make times comparable on a machine with other work.
What happens goes to ``--events`` as it does, a JSON object a line, for `make demo` to show.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

import horovod.torch as hvd
import torch
from clicks import Clicks
from compressions import argument, compressor
from meeting import meet
from traffic import interface_bytes, pace, socket_bytes
from training import Training
from virtual_hosts.network import bits_per_second

TURN = 4  # steps
COUNTERS = {"interface": interface_bytes, "sockets": socket_bytes}


class Contender(Training):
    """A training whose turns are counted in bytes, too."""

    sent = 0

    def turn(self, steps: int, counter: str, say: "Events") -> None:
        """Train some steps, all ranks from the same moment on."""
        meet()
        before = COUNTERS[counter]()
        for _ in range(steps):
            self.advance(1)
            say("step", self, step=len(self.losses), seconds=self.seconds)
        meet()
        self.sent += COUNTERS[counter]() - before

    def validate(self, say: "Events") -> None:
        """On rank 0: others have reached the next meeting, where they sleep."""
        if hvd.rank() == 0:
            auc = self.task.evaluate(self.model)
            say("auc", self, step=len(self.losses), seconds=self.seconds, auc=auc)


class Events:
    """A file in which rank 0 writes down what happens."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a") if hvd.rank() == 0 else None

    def __call__(self, event: str, contender: Training | None = None, **what: float) -> None:
        if self.file:
            name = {"compression": contender.compression} if contender else {}
            self.file.write(json.dumps({"event": event, **name, **what}) + "\n")
            self.file.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--compression", type=argument, nargs="+", default=["none", "gqsgd"])
    add("--steps", type=int, default=Clicks.steps)
    add("--seed", type=int, default=0)
    add("--pace", type=bits_per_second, metavar="200mbit", help="limit TCP connections")
    add("--count", choices=COUNTERS, default="sockets", help="bytes sent by eth0, or by sockets")
    add("--events", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Compile, then train all contenders turn by turn."""
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    if options.pace:
        pace(options.pace / 8)
    say = Events(options.events)
    task = Clicks()
    say("begin", best=task.best, target=task.target, steps=options.steps)
    for name in options.compression:  # compiles kernels, which are kept for later runs
        tensor = torch.linspace(-1, 1, 1 << 18)
        hvd.allreduce(tensor, name=f"warm.{name}", compression=compressor(name))
    contenders = [Contender(task, name, options.seed) for name in options.compression]
    for done in range(0, options.steps, TURN):
        for contender in contenders:
            contender.turn(min(TURN, options.steps - done), options.count, say)
            contender.validate(say)
    for contender in contenders:
        ranks = hvd.allgather_object(contender.sent / options.steps)
        say("end", contender, bytes_per_step=fmean(ranks))


if __name__ == "__main__":
    main()
