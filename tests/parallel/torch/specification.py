"""What the exchange must return, for tensors."""

import numpy as np
import torch

from horovod_gqsgd import reference
from horovod_gqsgd.config import Config


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
    mean = reference.mean([bits(g) for g in gradients], config, name, step, factor)
    return torch.from_numpy(mean).to(gradients[0].dtype).view(gradients[0].shape)
