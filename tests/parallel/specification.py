"""What the exchange must return, bit for bit, by the NumPy specification."""

import numpy as np

from horovod_gqsgd import exponential, lanes, linear, norms
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither


def mean(
    arrays: list[np.ndarray], config: Config, name: str, step: int = 0, factor: float = 1.0
) -> np.ndarray:
    """Float32 mean of the ranks' flat arrays times ``factor``, quantised as ``config`` says."""
    n, size = len(arrays), arrays[0].size
    sent = np.stack([norms.local(x, config.q, config.p, config.block) for x in arrays])
    reduced = sent.max(axis=0) if config.p == "inf" else sent.sum(axis=0)
    norm = norms.spread(norms.joined(reduced, config.p), size, config.block)
    dither = Dither(config.seed, step, name)
    draw = getattr(dither, config.rounding)
    if config.levels == "exponential":
        levels = config.code
        scale = exponential.scale_for(norm)
        codes = np.stack(
            [
                levels.encode_scaled(norms.as_float32(x), scale, draw(i, n, 0, size))
                for i, x in enumerate(arrays)
            ]
        )
        reduced = config.reducer.reduce(codes, levels, dither.reduction(0, size))
        return exponential.decode(reduced, levels, norm, factor)
    s = linear.level_count(config.bits, n)
    words = [
        lanes.pack(linear.encode(norms.as_float32(x), norm, s, draw(i, n, 0, size)), config.bits)
        for i, x in enumerate(arrays)
    ]
    total = np.sum(words, axis=0, dtype=np.int64).astype(np.int32)
    return linear.decode(lanes.unpack(total, config.bits, size, s * n), norm, s, n, factor)
