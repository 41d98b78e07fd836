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


class Place(NamedTuple):
    """What a cost was measured at."""

    cores: str  # of each host; empty: all cores serve all hosts
    hosts: int
    parameters: int  # millions
    tensors: int

    @classmethod
    def of(cls, key: str) -> "Place":
        """From the key of a cell, without its kind.

        >>> Place.of("4 hosts of 0.25 cores, 10 M, 100 tensors")
        Place(cores='0.25', hosts=4, parameters=10, tensors=100)
        """
        hosts, parameters, tensors = key.split(", ")
        cores = hosts.partition(" of ")[2].removesuffix(" cores")
        return cls(cores, *(int(part.split()[0]) for part in (hosts, parameters, tensors)))

    def at(self, varied: str, size: int) -> "Place":
        """The same but for one size."""
        change: dict[str, Any] = {varied: size}
        return self._replace(**change)


class Growth(NamedTuple):
    """How costs grow between two neighbouring sizes of what is varied."""

    varied: str
    low: int
    high: int
    slopes: dict[str, tuple[float, float]]  # of time and CPU time, by compressor


def growths(cells: Cells) -> Iterator[Growth]:
    """Slopes on doubly logarithmic paper: a cost that grows as size^a has the slope a."""
    rows = {Place.of(key): cell["result"] for key, cell in of_kind(cells, "growth").items()}
    for varied in VARIED:
        lines: dict[Place, list[int]] = {}
        for place in sorted(rows):
            if varied == "hosts" and not place.cores:
                continue  # the same cores serve more hosts: time grows even if none has more to do
            lines.setdefault(place.at(varied, 0), []).append(getattr(place, varied))
        for line, sizes in lines.items():
            for low, high in pairwise(sizes):
                less, more = (rows[line.at(varied, size)] for size in (low, high))
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
    """The steepest slopes of our compressors, of time or CPU time: none is faster than linear."""
    steepest: dict[str, float] = {}
    for growth in growths(cells):
        for name, slopes in growth.slopes.items():
            if name.startswith("gqsgd"):
                what = f"growth with {growth.varied}: `{name}`, steepest slope"
                steepest[what] = max(steepest.get(what, -1e9), *slopes)
    for what, slope in steepest.items():
        yield at_most(what, LINEAR, slope)


def growth_table(cells: Cells) -> Iterator[str]:
    """Times and slopes, where there are some."""
    if not (rows := of_kind(cells, "growth")):
        return
    yield "\n## How cost grows\n"
    yield f"Measured {states(rows)}. Links without a limit; one of hosts, parameters, tensors"
    yield "varied at a time. Milliseconds for all tensors, and of CPU time in each process. Where"
    yield "hosts are varied each has a share of CPU time (`cluster.py --cpus`), as it would have"
    yield "cores of its own in a real cluster: if all cores served 2 hosts as well as 8, time would"
    yield "grow even if none had more to do. Where the share is “all”, four hosts have the cores in"
    yield "common.\n"
    names = list(next(iter(rows.values()))["result"])
    heads = " | ".join(f"`{name}` | CPU" for name in names)
    yield f"| hosts | cores of each | parameters | tensors | {heads} |"
    yield "|---|---|---|---|" + "---|" * (2 * len(names))
    for key, cell in rows.items():
        at, result = Place.of(key), cell["result"]
        times = (f"{1e3 * result[n]['seconds']:.0f} | {1e3 * result[n]['cpu']:.0f}" for n in names)
        where = f"{at.hosts} | {at.cores or 'all'} | {at.parameters} M | {at.tensors}"
        yield f"| {where} | {' | '.join(times)} |"
    found = list(growths(cells))
    if not found:
        return
    yield "\nSlope on doubly logarithmic paper between neighbouring sizes: 1 is linear growth, 0"
    yield "none. On hosts with a share, time is about CPU time over share, and more where they wait"
    yield "for one another. `none` waits as stock Horovod does, which polls: that takes more of a"
    yield "share in one case than in another, so that its slopes with hosts do not tell what its"
    yield "messages cost. GlobalQSGD waits asleep.\n"
    yield f"| varied | from | to | {heads} |"
    yield "|---|---|---|" + "---|" * (2 * len(names))
    for growth in found:
        slopes = (f"{slope:.2f}" for name in names for slope in growth.slopes[name])
        sizes = f"{growth.low:,} | {growth.high:,}"
        yield f"| {growth.varied} | {sizes} | {' | '.join(slopes)} |"
    faster = [target for target in growth_targets(cells) if not target.kept]
    verdict = "; ".join(f"{t.what} {t.measured:.2f}" for t in faster)
    yield f"\n{verdict or 'No term grows faster than linearly'} (slope at most {LINEAR})."
