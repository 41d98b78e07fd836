"""Code on the pages does what they say."""

import re
from pathlib import Path

import numpy as np

from horovod_gqsgd import reductions
from horovod_gqsgd.dither import Dither
from horovod_gqsgd.kernels import reduce as fast_reduce
from horovod_gqsgd.reductions import get_reduction
from tests.unit.test_reductions import LEVELS

DOCS = Path(__file__).parents[2] / "docs"


def test_numba_reduction_of_the_docs(monkeypatch):
    """The page's code as it stands: with Numba the codes are those of NumPy."""
    monkeypatch.setattr(reductions, "_registry", dict(reductions._registry))
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "reductions.md").read_text(), re.DOTALL):
        exec(code, names)
    for levels in LEVELS:
        size = 100 * levels.bits
        packed = np.random.default_rng(0).integers(0, 256, (5, size)).astype(np.uint8)
        results = {}
        for name in ("median", "fast median"):
            results[name] = np.empty(size, np.uint8)
            where = (results[name], 797, Dither(0, 0, "weight"))
            fast_reduce.reduce(get_reduction(name), packed, levels, *where)
        assert (results["median"] == results["fast median"]).all(), levels
