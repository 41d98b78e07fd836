"""Speed of the CPU kernels against the memory of this machine.

    python benchmarks/codec.py [--millions 25 100] [--threads 2] [--repeats 15] [--json FILE]

Every kernel stands beside its floor: a plain loop with the same reads and writes and next to no
arithmetic, measured in the same run, in turn with it. GB/s count the bytes that must be read and
written; the last two columns are the same operation written with plain torch and plain NumPy.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import torch
from numba import prange
from rich.console import Console
from rich.progress import track
from rich.table import Table

from horovod_gqsgd import lanes, norms
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.exponential import Levels, packed_size
from horovod_gqsgd.kernels import exponential as kernels_exponential
from horovod_gqsgd.kernels import linear as kernels_linear
from horovod_gqsgd.kernels import norm as kernels_norm
from horovod_gqsgd.kernels import reduce as kernels_reduce
from horovod_gqsgd.linear import LANES
from horovod_gqsgd.reductions import get_reduction

BLOCK = 1024
CHUNK = 65_536
N = 4
OPTIONS = {"nogil": True, "parallel": True, "error_model": "numpy", "boundscheck": False}


class Case(NamedTuple):
    """One line of the table: what runs, what it is held against and how much it must reach."""

    name: str
    bytes_per_element: float
    kernel: Callable[[], object]
    floor: str
    target: float | None = None
    torch: Callable[[], object] | None = None
    numpy: Callable[[], object] | None = None


@numba.njit(**OPTIONS)
def floor_read(x, out):
    """Read everything, once, in four streams."""
    quarter = CHUNK // 4
    for task in prange(0, x.size // CHUNK):
        start = task * CHUNK
        a, b = x[start : start + quarter], x[start + quarter : start + 2 * quarter]
        c = x[start + 2 * quarter : start + 3 * quarter]
        d = x[start + 3 * quarter : start + 4 * quarter]
        total = np.int32(0)
        for j in range(quarter):
            total = np.int32(total + np.int32(np.int32(a[j] ^ b[j]) ^ np.int32(c[j] ^ d[j])))
        out[task] = total


@numba.njit(**OPTIONS)
def floor_encode(x, words, count):
    """Read float32 in the lane layout and write one word for ``count`` of them."""
    tiles = x.size // (count * 1024)
    for tile in prange(0, tiles):
        out = words[tile * 1024 : (tile + 1) * 1024]
        start = tile * count * 1024
        if count % 4:
            out[:] = 0
        for lane in range(0, count // 4 * 4, 4):
            at = start + lane * 1024
            a, b = x[at : at + 1024], x[at + 1024 : at + 2048]
            c, d = x[at + 2048 : at + 3072], x[at + 3072 : at + 4096]
            keep = np.int32(0 if lane == 0 else -1)
            for j in range(1024):
                pair = np.int32(np.int32(a[j]) + np.int32(b[j]))
                other = np.int32(np.int32(c[j]) + np.int32(d[j]))
                out[j] = np.int32(np.int32(out[j] & keep) + np.int32(pair + other))
        for lane in range(count // 4 * 4, count):
            a = x[start + lane * 1024 : start + (lane + 1) * 1024]
            for j in range(1024):
                out[j] = np.int32(out[j] + np.int32(a[j]))


@numba.njit(**OPTIONS)
def floor_decode(words, out, count):
    """Read words and write ``count`` float32 for each, in the lane layout."""
    for tile in prange(0, out.size // (count * 1024)):
        given = words[tile * 1024 : (tile + 1) * 1024]
        for lane in range(count):
            start = (tile * count + lane) * 1024
            a = out[start : start + 1024]
            for j in range(1024):
                a[j] = np.float32(given[j])


@numba.njit(**OPTIONS)
def floor_narrow(x, out):
    """Read float32, write bytes."""
    for task in prange(0, x.size // CHUNK):
        a, b = x[task * CHUNK : (task + 1) * CHUNK], out[task * CHUNK : (task + 1) * CHUNK]
        for j in range(CHUNK):
            b[j] = np.uint8(np.int32(a[j]))


@numba.njit(**OPTIONS)
def floor_widen(codes, out):
    """Read bytes, write float32."""
    for task in prange(0, out.size // CHUNK):
        a, b = codes[task * CHUNK : (task + 1) * CHUNK], out[task * CHUNK : (task + 1) * CHUNK]
        for j in range(CHUNK):
            b[j] = np.float32(a[j])


@numba.njit(**OPTIONS)
def floor_rows(a, b, c, d, out):
    """Read four rows of bytes, write one."""
    for task in prange(0, out.size // CHUNK):
        start, stop = task * CHUNK, (task + 1) * CHUNK
        i, j, k, m, o = a[start:stop], b[start:stop], c[start:stop], d[start:stop], out[start:stop]
        for t in range(CHUNK):
            o[t] = np.uint8(np.uint8(i[t] ^ j[t]) ^ np.uint8(k[t] ^ m[t]))


def torch_encode(x: torch.Tensor, norm: torch.Tensor, levels: int) -> torch.Tensor:
    """Stochastic rounding and packing of 8-bit lanes as one would write it in torch."""
    scaled = x.view(-1, BLOCK) * (levels / norm)[:, None]
    digits = (scaled + torch.rand_like(scaled)).floor_().clamp_(-levels, levels).to(torch.int32)
    lane = digits.view(-1, 4, BLOCK)
    return lane[:, 0] + (lane[:, 1] << 8) + (lane[:, 2] << 16) + (lane[:, 3] << 24)


def numpy_encode(x, norm, levels, random):
    """The same in NumPy."""
    scaled = x.reshape(-1, BLOCK) * (np.float32(levels) / norm)[:, None]
    scaled += random.random(scaled.shape, np.float32)
    lane = np.clip(np.floor(scaled), -levels, levels).astype(np.int32).reshape(-1, 4, BLOCK)
    return lane[:, 0] + (lane[:, 1] << 8) + (lane[:, 2] << 16) + (lane[:, 3] << 24)


def torch_decode(words: torch.Tensor, norm: torch.Tensor, limit: int) -> torch.Tensor:
    """Unpacking and scaling as one would write it in torch."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32)
    lifted = words.view(-1, 1, BLOCK) + limit * 0x01010101
    digits = (lifted >> shifts.view(1, 4, 1) & 255) - limit
    return digits.view(-1, BLOCK).float() * (norm / limit)[:, None]


def numpy_decode(words, norm, limit):
    """The same in NumPy."""
    lifted = words.reshape(-1, 1, BLOCK) + np.int32(limit * 0x01010101)
    digits = (lifted >> np.arange(0, 32, 8, dtype=np.int32)[:, None] & 255) - np.int32(limit)
    return digits.reshape(-1, BLOCK).astype(np.float32) * (norm / np.float32(limit))[:, None]


def torch_exponential(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Base-2 levels as one would write them in torch."""
    scaled = x.view(-1, BLOCK).abs() / norm[:, None]
    mantissa, exponent = torch.frexp(scaled)
    up = torch.rand_like(scaled) < 2 * mantissa - 1
    index = (2 - exponent - up.int()).clamp_(1, 127)
    return (index * (scaled > 0) + 128 * (x.view(-1, BLOCK) < 0)).to(torch.uint8)


def numpy_exponential(x, norm, random):
    """The same in NumPy."""
    scaled = np.abs(x.reshape(-1, BLOCK)) / norm[:, None]
    mantissa, exponent = np.frexp(scaled)
    up = random.random(scaled.shape, np.float32) < 2 * mantissa - 1
    index = np.clip(2 - exponent - up, 1, 127)
    return (index * (scaled > 0) + 128 * (x.reshape(-1, BLOCK) < 0)).astype(np.uint8)


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
        "read": lambda: floor_read(x.view(np.int32), partial),
        "narrow": lambda: floor_narrow(x, codes),
        "widen": lambda: floor_widen(codes, out),
        "rows": lambda: floor_rows(*rows[1], codes),
    }
    for width, count in LANES.items():
        floors[f"encode {width}"] = lambda w=width, c=count: floor_encode(x, words[w], c)
        floors[f"decode {width}"] = lambda w=width, c=count: floor_decode(words[w], out, c)

    def encode(width: int, rounding: str, n: int) -> Callable[[], object]:
        arguments = (x, norm, BLOCK, width, words[width], dither, rounding, 1, n)
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
            lambda: torch_encode(t_x, t_norm, 31), lambda: numpy_encode(x, norm, 31, random),
        ),
        Case("encode linear 8, correlated", 5, encode(8, "correlated", N), "encode 8", 0.50),
        Case("encode linear 8, correlated, n = 3", 5, encode(8, "correlated", 3), "encode 8"),
        Case(
            "decode linear 8", 5, decode(8, N), "decode 8", 0.85,
            lambda: torch_decode(t_words, t_norm, 124), lambda: numpy_decode(words[8], norm, 124),
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
                    (lambda: torch_exponential(t_x, t_norm)) if plain else None,
                    (lambda: numpy_exponential(x, norm, random)) if plain else None,
                )
            )  # fmt: skip
        table.append(
            Case(
                f"decode exponential 8, base {base}", 5,
                lambda v=levels: kernels_exponential.decode(codes, norm, BLOCK, v, out), "widen",
                target,
            )
        )  # fmt: skip
        for reduction in ("exact", "pairwise"):
            target_rows = (0.33 if octave == 1 else 0.20) if reduction == "exact" else None
            table.append(
                Case(
                    f"reduce 4 rows, {reduction}, base {base}", 5,
                    lambda r=reduction, v=levels: kernels_reduce.reduce(
                        get_reduction(r), rows[v.octave], v, codes, size, dither
                    ), "rows", target_rows,
                )
            )  # fmt: skip
    return floors, table


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(size: int, repeats: int, console: Console) -> list[dict]:
    """Best times of ``repeats`` interleaved rounds; torch and NumPy get a fifth of them."""
    floors, table = cases(size)
    work: dict[str, Callable[[], object]] = {f"floor {k}": run for k, run in floors.items()}
    slow: dict[str, Callable[[], object]] = {}
    for case in table:
        work[case.name] = case.kernel
        if case.torch and case.numpy:
            slow |= {f"torch {case.name}": case.torch, f"numpy {case.name}": case.numpy}
    best = dict.fromkeys([*work, *slow], float("inf"))
    for run in work.values():
        run()  # compile
    title = f"{size / 1e6:.0f} M elements"
    for round_ in track(range(repeats), title, console=console, disable=not console.is_terminal):
        for name, run in {**work, **(slow if round_ % 5 == 0 else {})}.items():
            best[name] = min(best[name], seconds(run))
    lines = []
    for case in table:
        traffic = case.bytes_per_element * size / 1e9
        floor = best[f"floor {case.floor}"]
        lines.append(
            {
                "operation": case.name,
                "elements": size,
                "GB/s": traffic / best[case.name],
                "floor GB/s": traffic / floor,
                "ratio": floor / best[case.name],
                "target": case.target,
                "torch GB/s": traffic / best[f"torch {case.name}"] if case.torch else None,
                "NumPy GB/s": traffic / best[f"numpy {case.name}"] if case.numpy else None,
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
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    numba.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    console = Console()
    lines = []
    for millions in arguments.millions:
        size = millions * 1_000_000 // (15 * CHUNK) * 15 * CHUNK  # whole tiles of every width
        lines += measure(size, arguments.repeats, console)
        show([line for line in lines if line["elements"] == size], console)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
