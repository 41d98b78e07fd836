"""Speed of the CPU kernels against the memory of this machine.

    python benchmarks/codec.py [--millions 25 100] [--threads 2] [--repeats 15] [--only TEXT]
        [--json FILE]

Every kernel stands beside its floor: a plain loop with the same reads and writes and next to no
arithmetic, measured in turn with it. All figures are medians of rounds, shares of the floor those
of the ratios inside a round: the memory of a virtual machine may change its speed from one minute
to the next. GB/s count the bytes that must be read and written; the last two columns are the same
operation written with plain torch and plain NumPy.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import codec_floors
import codec_plain
import numba
import numpy as np
import torch
from codec_floors import CHUNK
from codec_plain import BLOCK
from rich.console import Console
from rich.progress import track
from rich.table import Table

from horovod_gqsgd import lanes, norms
from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.codecs.linear import LANES
from horovod_gqsgd.codes import packed_size
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.kernels import exponential as kernels_exponential
from horovod_gqsgd.kernels import linear as kernels_linear
from horovod_gqsgd.kernels import norm as kernels_norm
from horovod_gqsgd.kernels import reduce as kernels_reduce
from horovod_gqsgd.reductions import get_reduction

N = 4
#: Numbers of rows that reductions are measured with.
ROWS = (4, 16, 64)


class Case(NamedTuple):
    """One line of the table: what runs, what it is held against and how much it must reach."""

    name: str
    bytes_per_element: float
    kernel: Callable[[], object]
    floor: str
    target: float | None = None
    torch: Callable[[], object] | None = None
    numpy: Callable[[], object] | None = None


def gaussian_rows(size: int, levels: Levels, random: np.random.Generator) -> np.ndarray:
    """Codes of N ranks whose gradients are Gaussian, as reductions meet them."""
    rows = np.empty((N, packed_size(size, levels.bits)), np.uint8)
    norm = np.full(1, 5, np.float32)
    for rank, row in enumerate(rows):
        x = random.standard_normal(size, dtype=np.float32)
        dither = Dither(seed=0, step=rank, name="benchmark")
        kernels_exponential.encode(x, norm, None, levels, row, dither, "independent", rank, N)
    return rows


def cases(size: int) -> tuple[dict[str, Callable[[], object]], list[Case]]:
    """The floors by name, and the lines of the table, for float32 tensors of ``size``."""
    random = np.random.default_rng(0)
    x = random.standard_normal(size, dtype=np.float32)
    bits = np.empty(norms.blocks(size, BLOCK), np.int32)
    kernels_norm.local(x, "inf", "inf", BLOCK, bits)
    norm = bits.view(np.float32)
    out, codes = np.empty_like(x), np.empty(packed_size(size, 8), np.uint8)
    rows = {octave: gaussian_rows(size, Levels(8, octave), random) for octave in (1, 2, 4)}
    words = {width: np.zeros(lanes.word_count(size, width), np.int32) for width in LANES}
    dither = Dither(seed=0, step=0, name="benchmark")
    t_x, t_norm, t_words = torch.from_numpy(x), torch.from_numpy(norm), torch.from_numpy(words[8])
    partial = np.zeros(size // CHUNK + 1, np.int32)

    floors: dict[str, Callable[[], object]] = {
        "read": lambda: codec_floors.read(x.view(np.int32), partial),
        "narrow": lambda: codec_floors.narrow(x, codes),
        "widen": lambda: codec_floors.widen(codes, out),
    }
    for n in ROWS:
        flat, reduced = rows[1].reshape(-1), codes[: size * N // n]
        floors[f"rows {n}"] = lambda n=n, f=flat, r=reduced: codec_floors.rows(f, n, r)
    for width, count in LANES.items():
        floors[f"encode {width}"] = lambda w=width, c=count: codec_floors.encode(x, words[w], c)
        floors[f"decode {width}"] = lambda w=width, c=count: codec_floors.decode(words[w], out, c)

    nothing = np.full_like(x, 0)  # written to, or all of its pages would be the same one

    def encode(width: int, rounding: str, n: int, given: np.ndarray = x) -> Callable[[], object]:
        arguments = (given, norm, BLOCK, width, words[width], dither, rounding, 1, n)
        return lambda: kernels_linear.encode(*arguments)

    def decode(width: int, n: int) -> Callable[[], object]:
        return lambda: kernels_linear.decode(words[width], norm, BLOCK, width, out, n)

    # 3 bits serve 3 workers at most
    def ranks(width: int) -> int:
        return N if width > 3 else 2

    table = [
        Case(
            "norm, max", 4,
            lambda: kernels_norm.local(x, "inf", "inf", BLOCK, bits), "read", 0.85,
            lambda: t_x.view(-1, BLOCK).abs().amax(1),
            lambda: np.abs(x.reshape(-1, BLOCK)).max(1),
        ),
        Case(
            "encode linear 8, independent", 5, encode(8, "independent", N), "encode 8", 0.70,
            lambda: codec_plain.torch_encode(t_x, t_norm, 31),
            lambda: codec_plain.numpy_encode(x, norm, 31, random),
        ),
        Case("encode linear 8, correlated", 5, encode(8, "correlated", N), "encode 8", 0.50),
        Case("encode linear 8, correlated, n = 3", 5, encode(8, "correlated", 3), "encode 8"),
        Case(
            "encode linear 8, correlated, zeros", 5, encode(8, "correlated", N, nothing),
            "encode 8",
        ),
        Case(
            "decode linear 8", 5, decode(8, N), "decode 8", 0.85,
            lambda: codec_plain.torch_decode(t_words, t_norm, 124),
            lambda: codec_plain.numpy_decode(words[8], norm, 124),
        ),
    ]  # fmt: skip
    for width, count in LANES.items():
        if width == 8:
            continue
        n, traffic = ranks(width), 4 + 4 / count
        for rounding, target in (("independent", 0.55), ("correlated", 0.40)):
            name = f"encode linear {width}, {rounding}"
            table.append(Case(name, traffic, encode(width, rounding, n), f"encode {width}", target))
        name = f"decode linear {width}"
        table.append(Case(name, traffic, decode(width, n), f"decode {width}", 0.75))
    for octave, base in ((1, "2"), (2, "√2"), (4, "⁴√2")):
        levels = Levels(8, octave)
        target = 0.60 if octave == 1 else 0.35
        for rounding in ("independent", "correlated"):
            name = f"encode exponential 8, base {base}, {rounding}"
            arguments = (x, norm, BLOCK, levels, codes, dither, rounding, 1, N)
            plain = rounding == "independent" and octave == 1
            table.append(
                Case(
                    name, 5, lambda a=arguments: kernels_exponential.encode(*a), "narrow",
                    target if rounding == "independent" else None,
                    (lambda: codec_plain.torch_exponential(t_x, t_norm)) if plain else None,
                    (lambda: codec_plain.numpy_exponential(x, norm, random)) if plain else None,
                )
            )  # fmt: skip
        table.append(
            Case(
                f"decode exponential 8, base {base}", 5,
                lambda v=levels: kernels_exponential.decode(codes, norm, BLOCK, v, out), "widen",
                target,
            )
        )  # fmt: skip
        if octave == 1:
            scheme = (norm, BLOCK, levels, codes, dither, "correlated", 1, N)
            silent, reduced = np.full_like(rows[1], 0), codes[:size]
            table += [
                Case(
                    f"encode exponential 8, base {base}, correlated, zeros", 5,
                    lambda a=scheme: kernels_exponential.encode(nothing, *a), "narrow",
                ),
                Case(
                    f"reduce 4 rows, exact, base {base}, zeros", 5,
                    lambda g=silent, v=levels, o=reduced: kernels_reduce.reduce(
                        get_reduction("exact"), g, v, o, o.size, dither
                    ), "rows 4",
                ),
            ]  # fmt: skip
        for n, reduction in ((4, "exact"), (4, "pairwise"), (16, "exact"), (64, "exact")):
            wanted = (0.33 if octave == 1 else 0.20) if (n, reduction) == (4, "exact") else None
            given, reduced = rows[octave].reshape(n, -1), codes[: size * N // n]
            table.append(
                Case(
                    f"reduce {n} rows, {reduction}, base {base}", (n + 1) * N / n,
                    lambda r=reduction, g=given, v=levels, o=reduced: kernels_reduce.reduce(
                        get_reduction(r), g, v, o, o.size, dither
                    ), f"rows {n}", wanted,
                )
            )  # fmt: skip
    return floors, table


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(size: int, repeats: int, only: str, console: Console) -> list[dict]:
    """Medians of ``repeats`` interleaved rounds; torch and NumPy take part in a fifth of them."""
    floors, table = cases(size)
    table = [case for case in table if only in case.name]
    floors = {name: run for name, run in floors.items() if name in {c.floor for c in table}}
    work: dict[str, Callable[[], object]] = {f"floor {k}": run for k, run in floors.items()}
    slow: dict[str, Callable[[], object]] = {}
    for case in table:
        work[case.name] = case.kernel
        if case.torch and case.numpy:
            slow |= {f"torch {case.name}": case.torch, f"numpy {case.name}": case.numpy}
    times: dict[str, list[float]] = {name: [] for name in [*work, *slow]}
    for run in work.values():
        run()  # compile
    title = f"{size / 1e6:.0f} M elements"
    for round_ in track(range(repeats), title, console=console, disable=not console.is_terminal):
        for name, run in {**work, **(slow if round_ % 5 == 0 else {})}.items():
            times[name].append(seconds(run))

    def speed(name: str, traffic: float) -> float:
        return traffic / median(times[name])

    lines = []
    for case in table:
        traffic = case.bytes_per_element * size / 1e9
        pairs = zip(times[f"floor {case.floor}"], times[case.name], strict=True)
        lines.append(
            {
                "operation": case.name,
                "elements": size,
                "GB/s": speed(case.name, traffic),
                "floor GB/s": speed(f"floor {case.floor}", traffic),
                "ratio": median(floor / kernel for floor, kernel in pairs),
                "target": case.target,
                "torch GB/s": speed(f"torch {case.name}", traffic) if case.torch else None,
                "NumPy GB/s": speed(f"numpy {case.name}", traffic) if case.numpy else None,
            }
        )
    return lines


def show(lines: list[dict], console: Console) -> None:
    columns = ["operation", "GB/s", "floor", "of floor", "target", "torch", "NumPy"]
    table = Table(*columns, title=f"{lines[0]['elements'] / 1e6:.0f} M float32")
    for column in table.columns[1:]:
        column.justify = "right"
    for line in lines:
        missed = line["target"] and line["ratio"] < line["target"]
        plain = [line["torch GB/s"], line["NumPy GB/s"]]
        table.add_row(
            line["operation"],
            f"{line['GB/s']:.1f}",
            f"{line['floor GB/s']:.1f}",
            f"[red]{line['ratio']:.0%}[/red]" if missed else f"{line['ratio']:.0%}",
            f"{line['target']:.0%}" if line["target"] else "",
            *(f"{value:.1f}" if value else "" for value in plain),
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--millions", type=int, nargs="+", default=[25, 100])
    parser.add_argument("--threads", type=int, default=min(2, numba.config.NUMBA_NUM_THREADS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", metavar="TEXT", help="operations that contain this")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    numba.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    console = Console()
    lines = []
    for millions in arguments.millions:
        size = millions * 1_000_000 // (15 * CHUNK) * 15 * CHUNK  # whole tiles of every width
        lines += measure(size, arguments.repeats, arguments.only, console)
        show([line for line in lines if line["elements"] == size], console)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
