"""Memory, and how cost grows: their tables and targets in the report of `make bench`."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

from bench_target import Target, at_most

Cells = Mapping[str, Mapping[str, Any]]
MEBIBYTE = 2**20
ALLOWANCE = 64  # MiB above none, besides the compressed gradient
VARIED = ("hosts", "parameters", "tensors")
#: Slope of a cost that grows linearly, and what times that are measured may add to it.
LINEAR = 1.1


def states(cells: Cells) -> str:
    """When and where cells were measured, and at which states of the code."""
    told = (f"{c['date']} at {c['commit']} on {c['machine']}" for c in cells.values())
    return "; ".join(dict.fromkeys(told))


class Peak(NamedTuple):
    """Memory of a rank with one compressor, in MiB."""

    model: str
    name: str
    peak: float
    above: float | None  # none: unknown, as nobody has measured none
    allowed: float | None


def of_kind(cells: Cells, kind: str) -> dict[str, Mapping[str, Any]]:
    """Cells of one kind, by the rest of their keys."""
    return {
        key.removeprefix(f"{kind}, "): cell
        for key, cell in cells.items()
        if key.startswith(f"{kind}, ")
    }


def peaks(cells: Cells) -> Iterator[Peak]:
    """Of all models and compressors that were measured."""
    found = {key: cell["result"] for key, cell in of_kind(cells, "memory").items()}
    for key, result in found.items():
        model, name = key.split(", ", 1)
        none = found.get(f"{model}, none")
        above = None if none is None else (result["peak"] - none["peak"]) / MEBIBYTE
        allowed = result["compressed"] / MEBIBYTE + ALLOWANCE if "gqsgd" in name else None
        yield Peak(model, name, result["peak"] / MEBIBYTE, above, allowed)


def memory_targets(cells: Cells) -> Iterator[Target]:
    """Of every compressor that may be compared with none."""
    for peak in peaks(cells):
        if peak.above is not None and peak.allowed is not None:
            what = f"memory, {peak.model}: `{peak.name}`, MiB above none"
            yield at_most(what, peak.allowed, peak.above)


def memory_table(cells: Cells) -> Iterator[str]:
    """Peaks, where there are some."""
    if not (measured := of_kind(cells, "memory")):
        return
    yield "\n## Memory\n"
    yield f"Measured {states(measured)}: peak resident set of a rank in MiB, Numba and its kernels"
    yield "loaded in any case.\n"
    yield "| model | compressor | peak | above none | allowed: compressed gradient + 64 MiB |"
    yield "|---|---|---|---|---|"
    for peak in peaks(cells):
        above = "" if peak.above is None else f"{peak.above:+.0f}"
        allowed = "" if peak.allowed is None else f"{peak.allowed:.0f}"
        yield f"| {peak.model} | `{peak.name}` | {peak.peak:.0f} | {above} | {allowed} |"


class Growth(NamedTuple):
    """How costs grow between two neighbouring sizes of what is varied."""

    varied: str
    low: int
    high: int
    slopes: dict[str, tuple[float, float]]  # of time and CPU time, by compressor


def growths(cells: Cells) -> Iterator[Growth]:
    """Slopes on doubly logarithmic paper: a cost that grows as size^a has the slope a."""
    rows = {
        tuple(int(part.split()[0]) for part in key.split(", ")): cell["result"]
        for key, cell in of_kind(cells, "growth").items()
    }
    for axis, varied in enumerate(VARIED):
        lines: dict[tuple[int, ...], list[int]] = {}
        for place in sorted(rows):
            lines.setdefault(place[:axis] + place[axis + 1 :], []).append(place[axis])
        for rest, sizes in lines.items():
            for low, high in pairwise(sizes):
                less, more = (rows[(*rest[:axis], size, *rest[axis:])] for size in (low, high))
                yield Growth(
                    varied, low, high,
                    {name: _slopes(less[name], more[name], high / low) for name in less},
                )  # fmt: skip


def _slopes(
    less: Mapping[str, float], more: Mapping[str, float], ratio: float
) -> tuple[float, float]:
    seconds, cpu = (log(more[kind] / less[kind]) / log(ratio) for kind in ("seconds", "cpu"))
    return seconds, cpu


def growth_targets(cells: Cells) -> Iterator[Target]:
    """The steepest slopes of our compressors: no term grows faster than linearly.

    With hosts it is CPU time that counts: as the same cores serve all of them, time grows with
    their number even where none has more to do.
    """
    steepest: dict[str, float] = {}
    for growth in growths(cells):
        for name, slopes in growth.slopes.items():
            if name.startswith("gqsgd"):
                what = f"growth with {growth.varied}: `{name}`, steepest slope"
                judged: tuple[float, ...] = slopes
                if growth.varied == "hosts":
                    what, judged = f"{what} of CPU time", slopes[1:]
                steepest[what] = max(steepest.get(what, -1e9), *judged)
    for what, slope in steepest.items():
        yield at_most(what, LINEAR, slope)


def growth_table(cells: Cells) -> Iterator[str]:
    """Times and slopes, where there are some."""
    if not (rows := of_kind(cells, "growth")):
        return
    yield "\n## How cost grows\n"
    yield f"Measured {states(rows)}. Links without a limit; one of hosts, parameters, tensors"
    yield "varied at a time. Milliseconds for all tensors, and of CPU time in each process (two"
    yield "cores serve all hosts).\n"
    names = list(next(iter(rows.values()))["result"])
    heads = " | ".join(f"`{name}` | CPU" for name in names)
    yield f"| hosts | parameters | tensors | {heads} |"
    yield "|---|---|---|" + "---|" * (2 * len(names))
    for key, cell in rows.items():
        hosts, millions, tensors = key.split(", ")
        result = cell["result"]
        times = (f"{1e3 * result[n]['seconds']:.0f} | {1e3 * result[n]['cpu']:.0f}" for n in names)
        yield f"| {hosts.split()[0]} | {millions} | {tensors.split()[0]} | {' | '.join(times)} |"
    found = list(growths(cells))
    if not found:
        return
    yield "\nSlope on doubly logarithmic paper between neighbouring sizes: 1 is linear growth, 0"
    yield "none. A ring of n hosts has 2·(n − 1) hops, and at each the next host waits for one of"
    yield "the two cores that all share: on one machine time grows faster than linearly with hosts"
    yield "for `none` as well, and the verdict on hosts is that on the CPU time of each.\n"
    yield f"| varied | from | to | {heads} |"
    yield "|---|---|---|" + "---|" * (2 * len(names))
    for growth in found:
        slopes = (f"{slope:.2f}" for name in names for slope in growth.slopes[name])
        sizes = f"{growth.low:,} | {growth.high:,}"
        yield f"| {growth.varied} | {sizes} | {' | '.join(slopes)} |"
    faster = [target for target in growth_targets(cells) if not target.kept]
    verdict = "; ".join(f"{t.what} {t.measured:.2f}" for t in faster)
    yield f"\n{verdict or 'No term grows faster than linearly'} (slope at most {LINEAR})."
