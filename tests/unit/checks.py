"""Checks that every level set must pass, and the inputs they run on."""

import numpy as np

from horovod_gqsgd import norms
from horovod_gqsgd.dither import Dither

SIGMAS = 4.5
ROUNDINGS = ["independent", "correlated"]


def check_unbiased(samples: np.ndarray, truth: np.ndarray) -> None:
    """Columns of ``samples`` (trials × cases) have the means ``truth``, at 4.5 standard errors."""
    trials = len(samples)
    error = samples.mean(axis=0, dtype=np.float64) - truth
    # A case whose samples are all alike has no spread to judge by: it must be right to 2^-14.
    standard_error = samples.std(axis=0, dtype=np.float64) / np.sqrt(trials)
    allowed = np.maximum(SIGMAS * standard_error, 2.0**-14 * np.abs(truth).max())
    assert (np.abs(error) <= allowed).all(), (error / allowed).max()


def check_below(measured: float, bound: float, trials: int) -> None:
    """A variance measured over ``trials`` is not above ``bound``, given its own spread."""
    assert measured <= bound * (1 + SIGMAS * np.sqrt(3 / trials)), measured / bound


def words(rounding: str, n: int, count: int, step: int = 0, seed: int = 0) -> np.ndarray:
    """Dither of n ranks, one a row."""
    draw = getattr(Dither(seed, step, "weight"), rounding)
    return np.stack([draw(rank, n, 0, count) for rank in range(n)])


def gradients(n: int, size: int, seed: int = 0) -> np.ndarray:
    """Random float32 gradients of n ranks with a wide range of magnitudes."""
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.standard_normal((n, size)))
    return (rng.standard_normal((n, size)) * spread).astype(np.float32)


def global_norms(x: np.ndarray, block: int | None) -> np.ndarray:
    """Max-norms of the gradients in the rows of ``x``."""
    bits = np.stack([norms.local(row, "inf", "inf", block) for row in x])
    return norms.joined(bits.max(axis=0), "inf")


def adversarial(n: int) -> dict[str, np.ndarray]:
    """Values of n ranks (one a row), in units of the step, on which rounding could conspire."""
    rng = np.random.default_rng(1)
    run = np.linspace(0.05, 0.95, n)[:, None]
    return {
        "identical": np.full((n, 1), 0.3),
        "identical, half": np.full((n, 1), 0.5),
        "opposite signs": np.where(np.arange(n)[:, None] % 2, -0.4, 0.4),
        "rising with the rank": run,
        "falling with the rank": run[::-1].copy(),
        "rising, signs alternating": run * np.where(np.arange(n)[:, None] % 2, -1, 1),
        "one against all": np.concatenate([[[0.9]], np.full((n - 1, 1), 0.1)]),
        "independent": rng.uniform(-3, 3, (n, 1)),
        "independent, small": rng.uniform(-0.2, 0.2, (n, 1)),
    }
