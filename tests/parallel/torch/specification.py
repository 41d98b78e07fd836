"""What the exchange must return, bit for bit, by the NumPy specification."""

import numpy as np
import torch

from horovod_gqsgd import exponential, lanes, linear, norms
from horovod_gqsgd.config import Config
from horovod_gqsgd.dither import Dither


def gradient(rank: int, *shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    """The gradient of a rank, which every rank can compute."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(shape, generator=generator).to(dtype)


def bits(tensor: torch.Tensor) -> np.ndarray:
    """As the kernels see a tensor."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(np.uint16)
    return flat.numpy()


def expected(
    gradients: list[torch.Tensor], config: Config, name: str, step: int = 0, factor: float = 1.0
) -> torch.Tensor:
    """Mean of the ranks' gradients times ``factor``, quantised as ``config`` says."""
    n, like = len(gradients), gradients[0]
    size, arrays = like.numel(), [bits(g) for g in gradients]
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
        mean = exponential.decode(reduced, levels, norm, factor)
        return torch.from_numpy(mean).to(like.dtype).view(like.shape)
    s = linear.level_count(config.bits, n)
    words = [
        lanes.pack(linear.encode(norms.as_float32(x), norm, s, draw(i, n, 0, size)), config.bits)
        for i, x in enumerate(arrays)
    ]
    total = np.sum(words, axis=0, dtype=np.int64).astype(np.int32)
    mean = linear.decode(lanes.unpack(total, config.bits, size, s * n), norm, s, n, factor)
    return torch.from_numpy(mean).to(like.dtype).view(like.shape)
