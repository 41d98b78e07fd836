"""The specification, whole: what every rank gets, from what each of them has, in plain NumPy.

Kernels and exchanges give the same bits. A codec's own part is its `mean`.

>>> ranks = [np.array([0.5, -1, 0.25], np.float32), np.array([0.25, 1, -1], np.float32)]
>>> mean(ranks, Config(bits=16), "weight").round(3)
array([ 0.375,  0.   , -0.375], dtype=float32)
"""

from collections.abc import Sequence

import numpy as np

from horovod_gqsgd import norms
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither


def mean(
    arrays: Sequence[np.ndarray], config: Config, name: str, step: int = 0, factor: float = 1.0
) -> np.ndarray:
    """Float32 mean times ``factor`` of the ranks' flat arrays, a tensor called ``name``.

    Arrays are float16, float32, float64, or uint16 for the bits of bfloat16.
    """
    sent = np.stack([norms.local(x, config.q, config.p, config.block) for x in arrays])
    reduced = sent.max(axis=0) if config.p == norms.INF else sent.sum(axis=0)
    norm = norms.spread(norms.joined(reduced, config.p), arrays[0].size, config.block)
    rows = [norms.as_float32(x) for x in arrays]
    return config.codec.mean(config, rows, norm, Dither(config.seed, step, name), factor)
