"""The ranks of `make demo`: one task trained with several compressions, which take turns.

    horovodrun -np 2 python benchmarks/showcase.py --compression none gqsgd --json FILE

Turns of a few steps in the same processes make steps/s comparable on a machine with other work.
Between turns the gradients of one more batch go over once exactly and once compressed, for the
signal-to-noise ratio; that is not in the time.
"""

import argparse
import json
from pathlib import Path

import horovod.torch as hvd
import torch
from compressions import argument
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tasks import TASKS
from training import Training

WARM_UP = 3  # steps; the first ever compiles the kernels, for later runs, too


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compression", type=argument, nargs="+", default=["none", "gqsgd"])
    parser.add_argument("--task", choices=TASKS, default="digits")
    parser.add_argument("--steps", type=int, help="default: until the task is learnt")
    parser.add_argument("--turn", type=int, default=22, help="steps of a turn")
    parser.add_argument("--json", type=Path, required=True, help="results go here")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    task = TASKS[options.task]()
    steps = options.steps or task.steps
    columns = ("{task.description}", "{task.fields[loss]}")
    progress = Progress(
        TextColumn(columns[0]), BarColumn(), TextColumn(columns[1]), TimeRemainingColumn(),
        disable=hvd.rank() != 0,
    )  # fmt: skip
    with progress:
        bar = progress.add_task("compiling", total=steps * len(options.compression), loss="")
        for name in options.compression:
            Training(task, name, seed=1).advance(WARM_UP)
        trainings = [Training(task, name, seed=0) for name in options.compression]
        for done in range(0, steps, options.turn):
            for training in trainings:
                count = min(options.turn, steps - done)
                progress.update(bar, description=f"{training.compression:16}")
                training.probe()
                training.advance(count)
                progress.update(bar, advance=count, loss=f"loss {training.losses[-1]:.3f}")
    results = [training.result() for training in trainings]
    if hvd.rank() == 0:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
