"""Results of parity.py as Markdown and as a plot."""

import datetime as dt
import os
import platform
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from tasks import TASKS

from horovod_gqsgd import __version__

Cell = list[dict]  # results of one task and compression, a seed each

ABOUT = {
    "digits": "the CNN of examples/pytorch_digits.py on scikit-learn's digits (151 K parameters)",
    "characters": "a transformer (0.4 M parameters) on the text of Python's standard library",
}


def write_report(results: list[dict], ranks: int, folder: Path) -> None:
    """``parity.md`` and ``parity.png`` in ``folder``."""
    cells: dict[tuple[str, str], Cell] = {}
    for result in results:
        cells.setdefault((result["task"], result["compression"]), []).append(result)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "parity.md").write_text("\n".join(page(cells, ranks)) + "\n")
    plot(cells, folder / "parity.png")


def page(cells: dict[tuple[str, str], Cell], ranks: int) -> list[str]:
    """The lines of the page."""
    seeds = max(len(cell) for cell in cells.values())
    lines = [
        "# Training with compressed gradients",
        "",
        "```console",
        f"$ horovodrun -np {ranks} python benchmarks/parity.py",
        "```",
        "",
        f"{dt.date.today():%d %B %Y}, {machine()}.",
        "",
        f"{seeds} seeds, which decide the initial weights and the order of the data. Nothing was",
        "tuned for compression: the same learning rates, the same number of steps. *Spread* is how",
        "far the seeds of `none` lie apart, *off* how far the mean of a compression lies from the",
        "mean of `none`, *seed by seed* from where to where that goes for the single seeds. Within",
        "the spread is not the same as free: where all seeds are off to one side by much the same,",
        "compression is the likely cause. SNR is that of the averaged gradient to an exact one,",
        "the mean over probes during training.",
    ]
    for task in dict.fromkeys(task for task, _ in cells):
        lines += ["", *table(task, {c: cell for (t, c), cell in cells.items() if t == task})]
    return [*lines, "", "![Final metric and training loss](parity.png)"]


def table(task: str, cells: dict[str, Cell]) -> list[str]:
    """A heading and a line for each compression."""
    reference = [result["metric"] for result in cells["none"]]
    spread = max(reference) - min(reference)
    sample = cells["none"][0]
    lines = [
        f"## {task.capitalize()}: {TASKS[task].metric}",
        "",
        f"{ABOUT[task][0].upper()}{ABOUT[task][1:]}, {sample['steps']} steps.",
        f"Spread of `none`: {spread:.3f}.",
        "",
        "| compression | mean | off | seed by seed | within spread | bytes per step | SNR |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        values = [result["metric"] for result in cell]
        off = fmean(values) - fmean(reference)
        within = "yes" if abs(off) <= spread else "**no**"
        single = [value - plain for value, plain in zip(values, reference, strict=True)]
        noise = [result["snr_db"] for result in cell if result["snr_db"] is not None]
        lines.append(
            f"| `{name}` | {fmean(values):.3f} | {off:+.3f} "
            f"| {min(single):+.3f} to {max(single):+.3f} | {within} "
            f"| {cell[0]['bytes_per_step']:,} | {f'{fmean(noise):.0f} dB' if noise else 'exact'} |"
        )
    return lines


def machine() -> str:
    """Processor and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    parts = [f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"]
    parts += [f"{package} {version(package)}" for package in ("torch", "horovod")]
    return ", ".join([*parts, f"horovod_gqsgd {__version__}, Python {platform.python_version()}"])


def plot(cells: dict[tuple[str, str], Cell], path: Path) -> None:
    """Above the final metric of every seed, below the training loss of the first."""
    import matplotlib as mpl

    mpl.use("Agg")  # no display needed
    from matplotlib import pyplot as plt

    tasks = list(dict.fromkeys(task for task, _ in cells))
    figure, grid = plt.subplots(
        2, len(tasks), figsize=(6.5 * len(tasks), 7), layout="constrained", squeeze=False
    )
    for task, finals, curves in zip(tasks, *grid, strict=True):
        mine = {c: cell for (t, c), cell in cells.items() if t == task}
        reference = [result["metric"] for result in mine["none"]]
        finals.axhspan(min(reference), max(reference), color="#dddddd", label="seeds of none")
        for i, (name, cell) in enumerate(mine.items()):
            values = [result["metric"] for result in cell]
            finals.plot([i] * len(values), values, "o", color=f"C{i}", alpha=0.7)
            finals.plot([i - 0.25, i + 0.25], [fmean(values)] * 2, color=f"C{i}", linewidth=2)
            steps = [6 * k for k in range(len(cell[0]["losses"]))]
            curves.plot(steps, cell[0]["losses"], color=f"C{i}", label=name, linewidth=1.2)
        names = [name.replace("levels=", "").translate({58: "\n", 44: "\n"}) for name in mine]
        finals.set_xticks(range(len(mine)), names, fontsize=8)
        finals.set(title=task.capitalize(), ylabel=TASKS[task].metric)
        finals.legend(frameon=False)
        curves.set(yscale="log", xlabel="step", ylabel="training loss, seed 0")
        curves.legend(frameon=False, fontsize=8)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
