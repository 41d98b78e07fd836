"""Reductions: n rows of exponential codes in, the codes of their mean (or another centre) out.

Exponential codes do not add as integers, so the exchange calls a reduction by its registered
name. The mean of numbers in [−N, N] lies there too: the same code serves, with no headroom, for
any number of workers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from horovod_gqsgd.codecs.exponential import UNIT, Levels, scale_for
from horovod_gqsgd.dither import finalise

Reduce = Callable[[np.ndarray, Levels, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Reduction:
    """A registered reduction; ``identity`` is what the ranks compare."""

    name: str
    reduce: Reduce
    cuda: Callable | None = None
    version: int = 1

    @property
    def identity(self) -> str:
        """Name, module, qualified name and version."""
        function = self.reduce
        where = getattr(function, "__module__", "?")
        what = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{self.name}={where}.{what}@{self.version}"

    def check_codes(self, largest: int, bits: int) -> None:
        """Raise where the ``largest`` code returned would spill into its neighbours."""
        if largest >> bits:
            raise ValueError(
                f"reduction {self.name!r} returned the code {largest}, which bits={bits} do "
                f"not hold: return codes from 0 to {2**bits - 1}, as levels.encode gives"
            )


_registry: dict[str, Reduction] = {}

#: Those with kernels, also for GPUs.
BUILTIN = ("exact", "pairwise")


def register_reduction(
    name: str, reduce: Reduce, *, cuda: Callable | None = None, version: int = 1
) -> None:
    """Make ``reduction=name`` available, on every rank alike.

    Parameters
    ----------
    name
        A new name; a name registered twice raises.
    reduce
        ``reduce(codes: uint8[n, m], levels, dither: uint32[m]) -> uint8[m]``, rows in rank order.
        ``levels.decode(codes)`` gives float32 in [−1, 1], ``levels.encode(values, dither)`` rounds
        without bias. It must be elementwise: a tensor may arrive in pieces.
    cuda
        The same on CUDA tensors of the framework, on its current stream; ``dither`` comes as
        int32, the bits of the words. Without it codes on a GPU are reduced on the host.
    version
        Raise it when the numbers change: ranks with different versions refuse each other.
    """
    if not (isinstance(name, str) and name):
        raise ValueError(f"name={name!r} is not allowed: a reduction's name is a non-empty string")
    if not callable(reduce):
        raise ValueError(f"reduce={reduce!r} is not allowed: a reduction is a function")
    if name in _registry:
        raise ValueError(f"name={name!r} is taken by {_registry[name].identity}: choose another")
    _registry[name] = Reduction(name, reduce, cuda, version)


def get_reduction(name: str) -> Reduction:
    """Look up a registered reduction.

    >>> get_reduction("exact").identity
    'exact=horovod_gqsgd.reductions.exact@1'
    """
    try:
        return _registry[name]
    except KeyError:
        raise ValueError(
            f"reduction={name!r} is not registered (known: {', '.join(sorted(_registry))}): "
            "call register_reduction on every rank first"
        ) from None


def weighted_mean(
    rows: np.ndarray, weights: np.ndarray, levels: Levels, dither: np.ndarray
) -> np.ndarray:
    """Code of ``Σ w_r·row_r / Σ w_r``: an exact int64 sum of integer levels, then one rounding.

    >>> rows, dither = np.array([[1], [2]], np.uint8), np.zeros(1, np.uint32)  # 1 and 1/2
    >>> Levels(8, 1).values[weighted_mean(rows, np.array([1, 1]), Levels(8, 1), dither)]
    array([0.5], dtype=float32)
    """
    total = (levels.decode_integers(rows) * weights[:, None]).sum(axis=0)
    full = np.array([int(weights.sum()) << UNIT], np.float32)
    return levels.encode_scaled(total.astype(np.float32), scale_for(full), dither)


def exact(codes: np.ndarray, levels: Levels, dither: np.ndarray) -> np.ndarray:
    """The mean with a single rounding: associative, the same bits everywhere."""
    return weighted_mean(codes, np.ones(len(codes), np.int64), levels, dither)


class Node(NamedTuple):
    """An addition of the tree: rows [low, middle) and [middle, high), with their leaf counts."""

    low: int
    middle: int
    left: int
    right: int


def tree(n: int) -> list[Node]:
    """The additions over n rows, children first; the left side takes the larger half.

    >>> [(node.low, node.middle) for node in tree(3)]
    [(0, 1), (0, 2)]
    """
    nodes: list[Node] = []

    def split(low: int, high: int) -> None:
        if high - low > 1:
            middle = (low + high + 1) // 2
            split(low, middle)
            split(middle, high)
            nodes.append(Node(low, middle, middle - low, high - middle))

    split(0, n)
    return nodes


def pairwise(codes: np.ndarray, levels: Levels, dither: np.ndarray) -> np.ndarray:
    """The paper's tree of stochastic additions in code space, for any number of rows.

    A node over a and b leaves holds ``(a·A + b·B)/(a + b)`` rounded to a level. Equal magnitudes
    of opposite sign and equal weight give 0, and the maximum on all ranks stays the maximum.
    """
    rows = codes.copy()
    for low, middle, *weights in tree(len(codes)):
        # One word serves all nodes: each hashes it with its own split, 1 … n − 1.
        word = finalise(dither + np.uint32(middle * 0x9E3779B9 & 0xFFFFFFFF))
        rows[low] = weighted_mean(rows[[low, middle]], np.array(weights), levels, word)
    return rows[0]


register_reduction("exact", exact)
register_reduction("pairwise", pairwise)
