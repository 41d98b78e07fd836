"""A race as one sees it: live, and in the end as a table of 80 columns and a picture."""

from pathlib import Path

from race import Race, Runner
from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

COLOURS = ["#8d99ae", "#e09f3e", "#2a6f97", "#c1121f"]


def live(race: Race, waiting: str) -> RenderableType:
    """Who is training, and how far everybody is; ``waiting`` stands there before the first step."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for header in ("", "compression", "step", "AUC", "seconds", ""):
        table.add_column(header, justify="right" if header in ("AUC", "seconds") else "left")
    for name, runner in race.runners.items():
        trains = name == race.turn
        reached = runner.seconds_to(race.target) is not None
        table.add_row(
            "[green]▸" if trains else "",
            Text(runner.label, style="bold" if trains else ""),
            f"{runner.step:>3}/{race.steps or '…'}",
            Text(_auc(runner.auc), style="green" if reached else ""),
            f"{runner.seconds:.1f}",
            ProgressBar(total=max(race.steps, 1), completed=runner.step, width=24),
        )
    left = race.seconds_left()
    status = waiting if race.turn is None else "training in turns"
    if all(runner.step == race.steps > 0 for runner in race.runners.values()):
        status = "done"
    elif left is not None:
        status = f"about {left // 60:.0f}:{left % 60:02.0f} left"
    return Group(table, Text(f"  {status}", style="dim"))


def line(race: Race, runner: Runner) -> str:
    """The same where nobody watches: a line for every validation."""
    left = race.seconds_left()
    more = "" if left is None else f"  {left:4.0f} s left"
    return (
        f"{runner.label:<20} step {runner.step:>3}/{race.steps}  AUC {_auc(runner.auc)}"
        f"  {runner.seconds:6.1f} s{more}"
    )


def _auc(auc: float | None) -> str:
    return "–" if auc is None else f"{auc:.3f}"


def table(race: Race, network: str) -> Table:
    """A line per compression; how much faster is to the first."""
    found = Table(box=box.SIMPLE_HEAD, title=f"Click-through prediction, {network}")
    found.add_column("compression", no_wrap=True)
    for header in (f"seconds to\nAUC {race.target:.2f}", "times\nfaster", "ms\na step",
                   "MB sent\na step", "AUC at\nthe end"):  # fmt: skip
        found.add_column(header, justify="right")
    none, *_ = race.runners.values()
    slowest = none.seconds_to(race.target)
    for runner in race.runners.values():
        seconds = runner.seconds_to(race.target)
        found.add_row(
            runner.label,
            "–" if seconds is None else f"{seconds:.1f}",
            "–" if seconds is None or slowest is None else f"{slowest / seconds:.1f} x",
            f"{runner.step_ms:,.0f}",
            f"{runner.bytes_per_step / 1e6:.1f}",
            _auc(runner.auc),
        )
    return found


def plot(race: Race, network: str, path: Path) -> None:
    """AUC over seconds, and the bytes of a step beside it."""
    import matplotlib as mpl

    mpl.use("Agg")  # no display needed
    from matplotlib import pyplot as plt

    figure, (curves, bars) = plt.subplots(
        1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=[1.9, 1]
    )
    runners = list(race.runners.values())
    slowest = runners[0].seconds_to(race.target)
    for runner, colour in zip(runners, COLOURS, strict=False):
        _, seconds, auc = zip(*runner.curve, strict=True)
        reached, label = runner.seconds_to(race.target), runner.label
        if reached is not None:
            faster = (
                f", {slowest / reached:.1f}× faster" if runner is not runners[0] and slowest else ""
            )
            label += f": {reached:.0f} s{faster}"
            curves.plot(reached, race.target, "o", color=colour, markersize=8)
            curves.vlines(reached, 0, race.target, color=colour, linewidth=0.8, linestyle=":")
        curves.plot(seconds, auc, color=colour, linewidth=2, marker="o", markersize=3, label=label)
    curves.axhline(race.target, color="#444444", linewidth=0.8, linestyle=":")
    least = min(runner.curve[0][2] for runner in runners)
    highest = max(race.target, *(auc for runner in runners for _, _, auc in runner.curve))
    room = 0.05 * (highest - least)
    curves.set(xlabel="seconds of training", ylabel="AUC on held-back clicks", xlim=(0, None),
               ylim=(least - room, highest + room))  # fmt: skip
    curves.legend(loc="lower right", facecolor="white", edgecolor="none", framealpha=1)
    megabytes = [runner.bytes_per_step / 1e6 for runner in runners]
    drawn = bars.barh([runner.label for runner in runners], megabytes, color=COLOURS)
    bars.invert_yaxis()  # the first on top
    bars.bar_label(drawn, [f"{value:.1f}" for value in megabytes], padding=4)
    bars.set(xlabel="MB sent per step and rank", xlim=(0, 1.15 * max(*megabytes, 1e-9)))
    for axes in (curves, bars):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Click-through prediction to AUC {race.target:.2f} (best possible {race.best:.3f}): "
        f"{network}"
    )
    figure.savefig(path, dpi=130)
