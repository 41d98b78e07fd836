"""Plots of `make bench`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, StrMethodFormatter

UNSHAPED = 8000  # where links without a limit stand on an axis of Mb/s
PHASES = ("norm", "encode", "reduce", "decode")


def _models(found: Sequence[Any]) -> dict[str, list[Any]]:
    ordered = sorted(found, key=lambda c: -_megabits(c.rate))
    return {c.model: [d for d in ordered if d.model == c.model] for c in found}


def _shown(names: Iterable[str]) -> list[str]:
    """All but those that are there as a bound."""
    return [name for name in names if not name.startswith("bare")]


def _megabits(rate: str) -> float:
    return UNSHAPED if rate == "none" else float(rate[:-4]) * (1000 if "gbit" in rate else 1)


def plot_times(found: Sequence[Any], path: Path) -> None:
    """Step time against bandwidth, a panel for each model; a compressor has one colour in all."""
    models = _models(found)
    names = dict.fromkeys(name for contest in found for name in _shown(contest.results))
    colours = {name: f"C{i}" for i, name in enumerate(n for n in names if n != "none")}
    figure, axes = plt.subplots(1, len(models), figsize=(6 * len(models), 5), squeeze=False)
    for panel, (model, of_model) in zip(axes[0], models.items(), strict=True):
        ordered = sorted(of_model, key=lambda c: _megabits(c.rate))
        places = [_megabits(c.rate) for c in ordered]
        for name in _shown(ordered[0].results):
            style = {"alone": ":"}.get(name, "--" if name[:3] == "ddp" else "-")
            times = [c.milliseconds(name) for c in ordered]
            colour = colours.get(name, "black")
            panel.plot(places, times, style, color=colour, marker=".", label=name)
        panel.set(xscale="log", yscale="log", title=model, xlabel="Mb/s", ylabel="ms per step")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        labels = ["unshaped" if c.rate == "none" else f"{_megabits(c.rate):.0f}" for c in ordered]
        panel.set_xticks(places, labels)
        panel.minorticks_off()
    _legend(figure, axes[0][0])
    _save(figure, path)


def plot_bytes(found: Sequence[Any], path: Path) -> None:
    """Bytes each host sends per step, at the slowest rate measured."""
    models = _models(found)
    figure, axes = plt.subplots(1, len(models), figsize=(6 * len(models), 4), squeeze=False)
    for panel, (model, of_model) in zip(axes[0], models.items(), strict=True):
        results = min(of_model, key=lambda c: _megabits(c.rate)).results
        names = [name for name in _shown(results) if name != "alone"]
        panel.barh(names[::-1], [results[name]["sent"] / 1e6 for name in names[::-1]])
        panel.set(title=model, xlabel="MB sent per step and host")
    _save(figure, path)


def plot_split(found: Sequence[Any], path: Path) -> None:
    """Where the time of a step goes, a row for each model, a panel for each rate.

    Compute is that of ``alone``, if the step leaves as much; exposed communication is what remains.
    """
    models = _models(found)
    columns = max(len(of_model) for of_model in models.values())
    size = (5 * columns, 4 * len(models))
    figure, axes = plt.subplots(len(models), columns, figsize=size, squeeze=False)
    for row, (model, of_model) in zip(axes, models.items(), strict=True):
        for panel in row[len(of_model) :]:
            panel.axis("off")
        for panel, contest in zip(row, of_model, strict=False):
            _split(panel, contest)
            rate = "unshaped" if contest.rate == "none" else f"{_megabits(contest.rate):,.0f} Mb/s"
            panel.set(title=f"{model}, {rate}", xlabel="ms per step")
    _legend(figure, axes[0][0])
    _save(figure, path)


def _split(panel: Any, contest: Any) -> None:
    results = contest.results
    names = [name for name in _shown(results) if name != "alone"][::-1]
    alone = median(results["alone"]["seconds"])
    whole = [median(results[name]["seconds"]) for name in names]
    phases = {phase: [results[name][phase] for name in names] for phase in PHASES}
    kernels = [sum(values) for values in zip(*phases.values(), strict=True)]
    compute = [min(alone, total - busy) for total, busy in zip(whole, kernels, strict=True)]
    parts = {"compute": compute, **phases}
    parts["exposed communication"] = [
        max(0.0, total - sum(part[i] for part in parts.values())) for i, total in enumerate(whole)
    ]
    left = [0.0] * len(names)
    for label, values in parts.items():
        panel.barh(names, [1e3 * v for v in values], left=[1e3 * x for x in left], label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]


def _legend(figure: Any, panel: Any) -> None:
    """Below all panels, where it hides nothing."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, ncols=6, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0))


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
