"""Horovod with and without compressed gradients, side by side: `make demo`.

What examples/pytorch_digits.py trains, once per compression, under horovodrun: on this machine, or
on hosts that share the folder for the results.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
COMPRESSIONS = {
    "none": "none",
    "fp16": "fp16",
    "GlobalQSGD": "gqsgd",
    "GlobalQSGD(bits=5)": "gqsgd:bits=5",
}
HOROVODRUN = str(Path(sys.executable).with_name("horovodrun"))


def train(hosts: str, ranks: int, steps: int | None, result: Path) -> list[dict]:
    """All trainings, on all slots of ``hosts``; ends the demo if they fail."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    if sys.stdout.isatty():  # horovodrun passes a progress bar on, if one is sent into its pipe
        env.update(TTY_COMPATIBLE="1", COLUMNS=str(shutil.get_terminal_size().columns - 12))
    command = [HOROVODRUN, "--gloo", "-np", str(ranks), "-H", hosts, sys.executable]
    command += [str(ROOT / "benchmarks" / "showcase.py"), "--json", str(result), "--compression"]
    command += [*COMPRESSIONS.values(), *(["--steps", str(steps)] if steps else [])]
    status = subprocess.run(command, env=env).returncode
    if sys.stdout.isatty():
        print()  # end the line that horovodrun has begun after the bar
    if status:
        sys.exit("error: the training failed (its output is above)")
    return [
        {**found, "label": label}
        for label, found in zip(COMPRESSIONS, json.loads(result.read_text()), strict=True)
    ]


def table(results: list[dict]) -> Table:
    """A line per compression; ratios are to the first."""
    found = Table("compression", "accuracy", "steps/s", "bytes per step", "ratio", "gradient SNR")
    for column in found.columns[1:]:
        column.justify = "right"
    for result in results:
        found.add_row(
            result["label"],
            f"{result['metric']:.1f} %",
            f"{result['steps_per_second']:.0f}",
            f"{result['bytes_per_step']:,}",
            f"{results[0]['bytes_per_step'] / result['bytes_per_step']:.1f} x",
            "exact" if result["snr_db"] is None else f"{result['snr_db']:.0f} dB",
        )
    return found


def plot(results: list[dict], ranks: int, path: Path) -> None:
    """Loss over steps, loss over bytes, and the bytes of a step."""
    import matplotlib as mpl

    mpl.use("Agg")  # no display needed
    from matplotlib import pyplot as plt

    figure, (over_steps, over_bytes, sizes) = plt.subplots(
        1, 3, figsize=(13, 4), layout="constrained", width_ratios=[1, 1, 0.8]
    )
    colours = ["#777777", "#e09f3e", "#2a6f97", "#9e2a2b"]
    for result, colour in zip(results, colours, strict=True):
        smooth = smoothed(result["losses"])
        megabytes = [(i + 1) * result["bytes_per_step"] / 1e6 for i in range(len(smooth))]
        style = {"color": colour, "label": result["label"], "linewidth": 1.6, "alpha": 0.9}
        over_steps.plot(smooth, **style)
        over_bytes.plot(megabytes, smooth, **style)
    for axes, label in ((over_steps, "steps"), (over_bytes, "MB handed to Horovod by a rank")):
        axes.set(yscale="log", xlabel=label, ylabel="training loss, smoothed")
    over_bytes.set(xscale="log")
    over_steps.legend(frameon=False)
    kilobytes = [result["bytes_per_step"] / 1e3 for result in results]
    bars = sizes.barh([result["label"] for result in results], kilobytes, color=colours)
    sizes.invert_yaxis()  # the first on top
    sizes.bar_label(bars, [f"{value:.0f} KB" for value in kilobytes], padding=4)
    sizes.set(xlabel="KB per step and rank", xlim=(0, 1.2 * max(kilobytes)))
    for axes in (over_steps, over_bytes, sizes):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"A small CNN on scikit-learn's digits, Horovod on {ranks} ranks")
    figure.savefig(path, dpi=130)


def smoothed(losses: list[float], keep: float = 0.9) -> list[float]:
    """An exponential moving average, corrected for its start."""
    found, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = keep * total + (1 - keep) * loss, keep * weight + (1 - keep)
        found.append(total / weight)
    return found


def main() -> None:
    """Train, print the table, draw the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, help="of each training; default: 264, 12 epochs")
    parser.add_argument("--hosts", default="localhost:2", help="name:slots,… (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "output" / "demo")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    ranks = sum(int(host.split(":")[1]) for host in options.hosts.split(","))
    console = Console()
    console.print(f"Horovod on {options.hosts}, a CNN on scikit-learn's digits")
    results = train(options.hosts, ranks, options.steps, options.output / "demo.json")
    console.print(table(results))
    console.print(
        "Bytes are those a rank hands to Horovod; SNR is that of the averaged gradient against an\n"
        "exact average. Ranks of one machine have its loopback, which is faster than a network:\n"
        "steps/s then show what compression costs, not what it gains where the network is slow."
    )
    picture = options.output / "demo.png"
    plot(results, ranks, picture)
    console.print(f"Plot: {os.path.relpath(picture)}")


if __name__ == "__main__":
    main()
