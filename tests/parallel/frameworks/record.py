"""Average the same gradients with one framework or the other, and keep what was sent.

Run by `test_frameworks` under horovodrun, once for each.
"""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from horovod_gqsgd.codecs.exponential import ExponentialCodec
from horovod_gqsgd.codecs.linear import LinearCodec

FRAMEWORK, FOLDER = sys.argv[1], Path(sys.argv[2])
CASES: list[dict[str, Any]] = [
    {},
    {"bits": 5, "seed": 7, "rounding": "independent", "block": None},
    {"norm": (2, "inf")},
    {"levels": "exponential", "bits": 6},
    {"levels": "exponential", "reduction": "pairwise"},
]

GROUPED = (0, 3)  # a case of either levels
TYPES = ("float32", "float64", "float16", "bfloat16")
SHAPES = [(50, 61), (2000,)]  # of a group; a tensor alone has the first

framework = import_module(FRAMEWORK)
hvd = import_module(f"horovod.{FRAMEWORK}")
plugin = import_module(f"horovod_gqsgd.{FRAMEWORK}")
kept: dict[str, np.ndarray] = {}


def watch(codec: type, kind: str) -> None:
    """Keep a copy of everything that is encoded."""
    original = codec.encode  # type: ignore[attr-defined]

    def encode(self: Any, x: np.ndarray, norm: np.ndarray, sent: np.ndarray, *rest: Any) -> None:
        original(self, x, norm, sent, *rest)
        kept[f"{len(kept)} {kind}"] = sent.copy()

    codec.encode = encode  # type: ignore[attr-defined]


def tensor(dtype: str, shape: tuple[int, ...], *seed: int) -> Any:
    """The gradient of this rank."""
    draws = np.random.default_rng([hvd.rank(), *seed]).standard_normal(shape)
    if FRAMEWORK == "torch":
        return framework.tensor(draws).to(getattr(framework, dtype))
    return framework.cast(draws, dtype)


def array(result: Any, dtype: str) -> np.ndarray:
    """A result; bfloat16, which NumPy does not have, as float32."""
    if dtype != "bfloat16":
        return result.numpy()
    if FRAMEWORK == "torch":
        return result.float().numpy()
    return framework.cast(result, "float32").numpy()


watch(LinearCodec, "words")
watch(ExponentialCodec, "codes")
hvd.init()
for i, parameters in enumerate(CASES):
    compression = plugin.GlobalQSGD(**parameters)
    for dtype in TYPES:
        for reduce, count in ((hvd.allreduce, 1), (hvd.grouped_allreduce, 2)):
            if count > 1 and i not in GROUPED:
                continue
            name = f"case.{i}.{dtype}.{count}"
            for step in range(2):
                tensors = [tensor(dtype, SHAPES[j], i, step, j) for j in range(count)]
                average = partial(reduce, name=name, compression=compression)
                if step and FRAMEWORK == "tensorflow":  # the other one was eager
                    average = framework.function(average)
                results = average(tensors) if count > 1 else [average(tensors[0])]
                for result in results:
                    kept[f"{len(kept)} {name} step {step}"] = array(result, dtype)
np.savez(FOLDER / f"{FRAMEWORK}.{hvd.rank()}.npz", **kept)
