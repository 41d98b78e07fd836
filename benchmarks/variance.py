"""Variance of reductions of exponential codes, measured, beside the formulas.

    python benchmarks/variance.py [--elements 16384] [--png docs/variance.png]

n workers round their numbers to levels of base 2, each with its own dither, and a reduction makes
one code of the n. Two cases: all workers hold the same number (error relative to its square, the
worst of an octave), and independent Gaussian numbers (squared error of all elements relative to
that of the true means). ``chain`` adds one row after the other, as a ring of quantised sums would.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.dither import Dither, finalise
from horovod_gqsgd.reductions import Reduce, exact, pairwise, weighted_mean

LEVELS = Levels(8, 1)
SIZES = [2, 4, 8, 16, 32, 64, 128, 256]
POINTS = np.exp2(-1 - np.arange(12) / 12).astype(np.float32)


def chain(codes: np.ndarray, levels: Levels, dither: np.ndarray) -> np.ndarray:
    """Rounded after every addition: what a ring of quantised sums would do."""
    total = codes[0]
    for i in range(1, len(codes)):
        word = finalise(dither + np.uint32(i * 0x9E3779B9 & 0xFFFFFFFF))
        total = weighted_mean(np.stack([total, codes[i]]), np.array([i, 1]), levels, word)
    return total


def error(reduction: Reduce, values: np.ndarray, step: int) -> float:
    """Squared error relative to the squared means, of values with a row for each worker."""
    n, count = values.shape
    dither = Dither(0, step, f"variance {n}")
    words = (dither.independent(rank, n, 0, count) for rank in range(n))
    codes = np.stack([LEVELS.encode(row, word) for row, word in zip(values, words, strict=True)])
    result = LEVELS.decode(reduction(codes, LEVELS, dither.reduction(0, count)))
    truth = values.mean(axis=0, dtype=np.float64)
    return float(np.square(result - truth).sum() / np.square(truth).sum())


def identical(reduction: Reduce, n: int, elements: int) -> float:
    """The worst of an octave."""
    cases = (np.broadcast_to(x, (n, elements // 4)) for x in POINTS)
    return max(error(reduction, case, step) for step, case in enumerate(cases))


def independent(reduction: Reduce, n: int, elements: int) -> float:
    """Gaussian workers."""
    values = np.random.default_rng(n).standard_normal((n, elements), np.float32)
    return error(reduction, values / np.abs(values).max(), 0)


def bounds(n: int) -> dict[str, tuple[float, float]]:
    """For identical and for independent workers, n = 2^k."""
    decay = n**-0.848
    return {
        "exact": (9 / 64 / n + 1 / 8, (9 / 8) ** 2 - 1),
        "pairwise": ((1 - decay) / 4 + decay / 8, 9 / 8 * n**0.152 - 1),
    }


def draw(results: dict[str, list[float]], path: Path) -> None:
    """Independent workers, with the bounds as dashed lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, errors in results.items():
        (line,) = axes.plot(SIZES, errors, marker="o", label=name)
        if name in bounds(2):
            limits = [bounds(n)[name][1] for n in SIZES]
            axes.plot(SIZES, limits, "--", color=line.get_color(), label=f"bound of {name}")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="error of the mean / mean²")
    axes.set_xticks(SIZES, map(str, SIZES))
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print the tables; draw where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--elements", type=int, default=16_384)
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    reductions = {"exact": exact, "pairwise": pairwise, "chain": chain}
    for place, case in enumerate((identical, independent)):
        results = {
            name: [case(function, n, arguments.elements) for n in SIZES]
            for name, function in reductions.items()
        }
        table = Table("n", *results, "bound exact", "bound pairwise", title=case.__name__)
        for i, n in enumerate(SIZES):
            figures = [errors[i] for errors in results.values()]
            figures += [bound[place] for bound in bounds(n).values()]
            table.add_row(str(n), *(f"{figure:.3f}" for figure in figures))
        Console().print(table)
    if arguments.png:
        draw(results, arguments.png)


if __name__ == "__main__":
    main()
