"""Does training end as well with compressed gradients? Two tasks, several seeds, in one job.

    horovodrun -np 2 python benchmarks/parity.py

Finished runs are kept in ``--results`` and not repeated: an interrupted job goes on where it
stopped, and a compression added later joins the same table. At the end docs/parity.md and
docs/parity.png are written from all results.
"""

import argparse
import json
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from compressions import argument
from parity_report import write_report
from tasks import TASKS
from training import Training

ROOT = Path(__file__).resolve().parents[1]
LINEAR = ["gqsgd", "gqsgd:bits=6", "gqsgd:bits=5"]
EXPONENTIAL = [f"gqsgd:levels=exponential,bits={bits}" for bits in ("8", "4", "3", "3,block=128")]
COMPRESSIONS = ["none", "fp16", *LINEAR, *EXPONENTIAL]
PROBES = 8  # of the signal-to-noise ratio, during a run


def arguments() -> argparse.Namespace:
    """The defaults make the committed report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--compression", type=argument, nargs="+", default=COMPRESSIONS)
    add("--task", choices=TASKS, nargs="+", default=list(TASKS))
    add("--seeds", type=int, default=3)
    add("--steps", type=int, help="default: those of the task")
    add("--results", type=Path, default=ROOT / "output" / "parity.json")
    add("--docs", type=Path, default=ROOT / "docs", help="folder for the report")
    return parser.parse_args()


def run(task_name: str, compression: str, seed: int, steps: int | None) -> dict:
    """One training; the curve thinned to what a plot shows."""
    task = TASKS[task_name]()
    task.steps = steps or task.steps
    training = Training(task, compression, seed)
    turn = max(task.steps // PROBES, 1)
    for done in range(0, task.steps, turn):
        training.probe()
        training.advance(min(turn, task.steps - done))
    result = training.result()
    del result["steps_per_second"]  # one after the other on a shared machine: not comparable
    losses = torch.tensor(result.pop("losses"))
    return {**result, "steps": task.steps, "losses": [c.mean().item() for c in losses.split(6)]}


def main() -> None:
    """All runs that are missing, seed by seed, then the report."""
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    found = json.loads(options.results.read_text()) if options.results.exists() else {}
    found = hvd.broadcast_object(found, root_rank=0)  # what is missing must be so for all ranks
    wanted = [
        (f"{task}, {compression}, seed {seed}, {options.steps or TASKS[task].steps} steps, "
         f"{hvd.size()} ranks", (task, compression, seed, options.steps))
        for seed in range(options.seeds)
        for task in options.task
        for compression in options.compression
    ]  # fmt: skip
    missing = [(key, case) for key, case in wanted if key not in found]
    start = time.monotonic()
    for i, (key, case) in enumerate(missing):
        found[key] = run(*case)
        if hvd.rank() == 0:
            left = (time.monotonic() - start) / (i + 1) * (len(missing) - i - 1)
            print(f"{i + 1}/{len(missing)} {key}: {found[key]['metric']:.3f} "
                  f"({left / 60:.1f} min left)", flush=True)  # fmt: skip
            options.results.parent.mkdir(parents=True, exist_ok=True)
            partial = options.results.with_suffix(".partial")
            partial.write_text(json.dumps(found))
            partial.replace(options.results)
    if hvd.rank() == 0:
        write_report([found[key] for key, _ in wanted], hvd.size(), options.docs)
        print(f"Report: {options.docs / 'parity.md'}")


if __name__ == "__main__":
    main()
