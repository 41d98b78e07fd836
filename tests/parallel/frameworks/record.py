"""Average the same gradients with one framework or the other, and keep what was sent.

Run by `test_frameworks` under horovodrun, once for each.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from horovod_gqsgd.codec import ExponentialCodec, LinearCodec

FRAMEWORK, FOLDER = sys.argv[1], Path(sys.argv[2])
CASES: list[dict[str, Any]] = [
    {},
    {"bits": 5, "seed": 7, "rounding": "independent", "block": None},
    {"norm": (2, "inf")},
    {"levels": "exponential", "bits": 6},
    {"levels": "exponential", "reduction": "pairwise"},
]

hvd = import_module(f"horovod.{FRAMEWORK}")
plugin = import_module(f"horovod_gqsgd.{FRAMEWORK}")
make = getattr(import_module(FRAMEWORK), "tensor" if FRAMEWORK == "torch" else "constant")
kept: dict[str, np.ndarray] = {}


def watch(codec: type, kind: str) -> None:
    """Keep a copy of everything that is encoded."""
    original = codec.encode  # type: ignore[attr-defined]

    def encode(self: Any, x: np.ndarray, norm: np.ndarray, sent: np.ndarray, *rest: Any) -> None:
        original(self, x, norm, sent, *rest)
        kept[f"{len(kept)} {kind}"] = sent.copy()

    codec.encode = encode  # type: ignore[attr-defined]


watch(LinearCodec, "words")
watch(ExponentialCodec, "codes")
hvd.init()
for i, parameters in enumerate(CASES):
    for dtype in (np.float32, np.float64, np.float16):
        name = f"case.{i}.{np.dtype(dtype).name}"
        for step in range(2):
            draws = np.random.default_rng([hvd.rank(), i, step]).standard_normal((50, 61))
            tensor = make(draws.astype(dtype))
            compression = plugin.GlobalQSGD(**parameters)
            result = hvd.allreduce(tensor, name=name, compression=compression)
            kept[f"{len(kept)} {name} step {step}"] = result.numpy()
np.savez(FOLDER / f"{FRAMEWORK}.{hvd.rank()}.npz", **kept)
