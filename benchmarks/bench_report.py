"""Page and plots of `make bench`, from the results of its cells."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench_costs import growth_table, growth_targets, memory_table, memory_targets, states
from bench_plots import plot_bytes, plot_split, plot_times
from bench_target import Target, at_least, at_most
from virtual_hosts.network import bits_per_second

Results = Mapping[str, Mapping[str, Any]]  # of a contest, by contender
RATES = {
    "none": "unshaped", "4gbit": "4 Gb/s", "1gbit": "1 Gb/s", "500mbit": "500 Mb/s",
    "200mbit": "200 Mb/s",
}  # fmt: skip
EXPONENTIAL = "gqsgd:levels=exponential,bits=4"
SLOW = ("embedding", "200mbit")  # where most is promised


class Contest(NamedTuple):
    """A workload at one rate."""

    model: str
    rate: str
    results: Results

    def milliseconds(self, name: str) -> float:
        """Median step time."""
        return 1e3 * median(self.results[name]["seconds"])

    def speedup(self, name: str, over: str = "none") -> float:
        """Median over the rounds of how many times faster than another contender."""
        pairs = zip(self.results[over]["seconds"], self.results[name]["seconds"], strict=True)
        return median(theirs / ours for theirs, ours in pairs)

    def bare(self, name: str) -> str | None:
        """The contender with the messages of ``name`` and without its kernels, if it took part."""
        found = name.replace("gqsgd", "bare", 1)
        return found if found in self.results else None

    def floors(self, name: str) -> list[float]:
        """Compute alone, and the bytes of ``name`` at line rate, in every round."""
        line = self.results[name]["carried"] * 8 / bits_per_second(self.rate)
        return [alone + line for alone in self.results["alone"]["seconds"]]

    def over_floor(self, name: str, whose: str) -> float:
        """Step time of ``name``, over the floor of ``whose``."""
        pairs = zip(self.results[name]["seconds"], self.floors(whose), strict=True)
        return median(taken / floor for taken, floor in pairs)

    def above_floor(self, name: str) -> float:
        """Milliseconds that a step takes beyond its floor."""
        pairs = zip(self.results[name]["seconds"], self.floors(name), strict=True)
        return 1e3 * median(taken - floor for taken, floor in pairs)

    def bytes_ratio(self, name: str) -> float:
        """Bytes on the wire, of those without compression."""
        return self.results[name]["sent"] / self.results["none"]["sent"]


def contests(cells: Mapping[str, Any]) -> list[Contest]:
    """Those among the cells."""
    found = []
    for key, cell in cells.items():
        model, rate, *_ = key.split(", ")
        if cell["command"][0] == "contest.py":
            found.append(Contest(model, rate, cell["result"]))
    return found


def targets(found: list[Contest]) -> Iterator[Target]:
    """The project's promises, as far as their contests are there."""
    by_place = {(contest.model, contest.rate): contest for contest in found}

    def times(place: Contest, bits: str, name: str, other: str, wanted: float) -> Target:
        what = f"{RATES[place.rate]}: {bits}, times {other}"
        bare = place.bare(name)
        bound = place.speedup(bare, other) if bare else None
        return at_least(what, wanted, place.speedup(name, other), bound)

    if slow := by_place.get(SLOW):
        yield times(slow, "8-bit", "gqsgd", "none", 3.5)
        yield times(slow, "8-bit", "gqsgd", "fp16", 1.9)
        yield times(slow, "5-bit", "gqsgd:bits=5", "none", 5)
        yield times(slow, "exponential 4-bit", EXPONENTIAL, "none", 5)
        for name in ("gqsgd", "gqsgd:bits=5", EXPONENTIAL):
            over, bare = slow.over_floor(name, name), slow.bare(name)
            bound = slow.over_floor(bare, name) if bare else None
            yield at_most(f"200 Mb/s: `{name}`, step over its floor", 1.25, over, bound)
        yield at_most("bytes on the wire: 8-bit, of none", 0.27, slow.bytes_ratio("gqsgd"))
        yield at_most("bytes on the wire: 5-bit, of none", 0.18, slow.bytes_ratio("gqsgd:bits=5"))
    if fast := by_place.get(("embedding", "1gbit")):
        half = max(("fp16", "ddp:fp16"), key=lambda name: fast.speedup(name))
        yield times(fast, "8-bit", "gqsgd", "none", 2.6)
        yield times(fast, "8-bit", "gqsgd", half, 2)
    for contest in found:
        if contest.rate == "none":
            for name in contest.results:
                if name.startswith("gqsgd"):
                    what = f"unshaped, {contest.model}: `{name}`, step time of none"
                    yield at_most(what, 1.1, 1 / contest.speedup(name))


def break_even(found: list[Contest], name: str) -> str:
    """The rate at which ``name`` is as fast as none, between two that were measured."""
    gains = sorted((_inverse(contest), 1 - 1 / contest.speedup(name)) for contest in found)
    if all(gain > 0 for _, gain in gains):
        return "faster at every rate measured"
    for (x0, g0), (x1, g1) in itertools.pairwise(gains):
        if g0 <= 0 < g1:
            x = x0 - g0 * (x1 - x0) / (g1 - g0)
            return f"{1e3 / x:,.0f} Mb/s" if x0 else f"above {1e3 / x1:,.0f} Mb/s"
    return "slower at every rate measured"


def _inverse(contest: Contest) -> float:
    """Nanoseconds a bit; 0 for links without a limit."""
    return 0.0 if contest.rate == "none" else 1e9 / bits_per_second(contest.rate)


def _step_table(found: list[Contest]) -> Iterator[str]:
    heads = [RATES.get(contest.rate, contest.rate) for contest in found]
    yield "| compressor | " + " | ".join(f"{head}: ms | × none" for head in heads) + " | MB sent |"
    yield "|---|" + "---|" * (2 * len(found) + 1)
    for name in found[-1].results:
        cells = [f"{c.milliseconds(name):.0f} | {c.speedup(name):.2f}" for c in found]
        sent = f"{found[-1].results[name]['sent'] / 1e6:.2f}"
        yield f"| `{name}` | {' | '.join(cells)} | {sent} |"


def _floor_table(slow: Contest) -> Iterator[str]:
    yield f"\n## Above the floor: {slow.model}, {RATES[slow.rate]}\n"
    yield (
        "The floor of a step is compute alone, and its bytes at line rate: those that the link "
        "counts against its rate, with the headers of all segments ([cluster](cluster.md"
        "#what-the-bytes-are)). What a step takes beyond that is rounds of negotiation, threads "
        "that wait for a core and, with compression, kernels. Milliseconds.\n"
    )
    yield "| compressor | step | floor | above | over |"
    yield "|---|---|---|---|---|"
    for name in [name for name in slow.results if name != "alone"]:
        floor, above = f"{1e3 * median(slow.floors(name)):.0f}", f"{slow.above_floor(name):.0f}"
        over = f"{slow.over_floor(name, name):.2f}"
        yield f"| `{name}` | {slow.milliseconds(name):.0f} | {floor} | {above} | {over} |"


def write_report(
    cells: Mapping[str, Any], docs: Path, quick: bool, missing: Sequence[str] = ()
) -> str:
    """Write benchmark.md, its data and its plots; returns the table of targets."""
    found = contests(cells)
    models = list(dict.fromkeys(contest.model for contest in found))
    lines = [
        "# Benchmark\n",
        f"```console\n$ make bench{'-quick' if quick else ''}\n```\n",
        "All virtual hosts share the cores of one machine ([cluster](cluster.md)): compare ratios, "
        "not absolute times, and not those of different machines. Median step time in "
        "milliseconds, the slowest rank; *× none* is the median over rounds in which all take "
        "turns; MB sent are those of each host's interface per step. `alone` computes and does not "
        "communicate; `bare` sends the messages of `gqsgd`, reads every gradient twice and writes "
        "it once, as no compressor can do without, and quantises nothing.",
    ]
    if missing:
        lines.append(f"\nNot measured yet: {'; '.join(missing)}.")
    for model in models:
        of_model = sorted((c for c in found if c.model == model), key=_inverse)
        measured = {key: cell for key, cell in cells.items() if key.startswith(f"{model}, ")}
        lines += [f"\n## {model}\n", f"Measured {states(measured)}.\n"]
        lines += [*_step_table(of_model), ""]
        for name in [n for n in of_model[0].results if n in ("gqsgd", EXPONENTIAL)]:
            lines.append(f"Break-even of `{name}` with none: {break_even(of_model, name)}.")
    for contest in found:
        if (contest.model, contest.rate) == SLOW:
            lines += _floor_table(contest)
    lines += [*memory_table(cells), *growth_table(cells)]
    lines += [
        "\n## Targets\n",
        "The last column is the same figure of `bare`, in the same rounds: a model that hands "
        "Horovod messages of the same sizes, and of all that kernels do only what no compressor "
        "can do without. It reads a "
        "gradient to find its norms, reads it again before the messages leave, and writes it when "
        "the last one is back. That is what kernels as fast as memory would make of the same "
        "messages, to within the few per cent by which runs scatter; codes in [other "
        "sections](reductions.md#the-exchange) may fare better.\n",
        "| target | wanted | measured | | `bare` |",
        "|---|---|---|---|---|",
    ]
    reached = [*targets(found), *memory_targets(cells), *growth_targets(cells)]
    lines += [
        f"| {t.what} | {t.wanted} | {t.measured:.2f} | {t.verdict} | "
        f"{'' if t.bound is None else f'{t.bound:.2f}'} |"
        for t in reached
    ]
    docs.mkdir(parents=True, exist_ok=True)
    name = "benchmark-quick" if quick else "benchmark"
    main = [contest for contest in found if " on " not in contest.model]
    if main:
        lines.append("")
        for kind, plot in (("times", plot_times), ("bytes", plot_bytes), ("split", plot_split)):
            plot(main, docs / f"{name}-{kind}.png")
            lines.append(f"![{kind}]({name}-{kind}.png)")
    (docs / f"{name}.md").write_text("\n".join(lines) + "\n")
    (docs / f"{name}.json").write_text(json.dumps(cells, indent=1) + "\n")
    told = [
        f"{'ok' if t.kept else 'NO':3}{t.measured:6.2f} {t.wanted:>7} {t.what}" for t in reached
    ]
    return "\n".join([*told, f"Report: {docs / f'{name}.md'}"])
