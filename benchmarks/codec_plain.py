"""The quantisers as one would write them in plain torch and plain NumPy, to compare with."""

import numpy as np
import torch

BLOCK = 1024


def torch_encode(x: torch.Tensor, norm: torch.Tensor, levels: int) -> torch.Tensor:
    """Stochastic rounding and packing of 8-bit lanes as one would write it in torch."""
    scaled = x.view(-1, BLOCK) * (levels / norm)[:, None]
    digits = (scaled + torch.rand_like(scaled)).floor_().clamp_(-levels, levels).to(torch.int32)
    lane = digits.view(-1, 4, BLOCK)
    return lane[:, 0] + (lane[:, 1] << 8) + (lane[:, 2] << 16) + (lane[:, 3] << 24)


def numpy_encode(x, norm, levels, random):
    """The same in NumPy."""
    scaled = x.reshape(-1, BLOCK) * (np.float32(levels) / norm)[:, None]
    scaled += random.random(scaled.shape, np.float32)
    lane = np.clip(np.floor(scaled), -levels, levels).astype(np.int32).reshape(-1, 4, BLOCK)
    return lane[:, 0] + (lane[:, 1] << 8) + (lane[:, 2] << 16) + (lane[:, 3] << 24)


def torch_decode(words: torch.Tensor, norm: torch.Tensor, limit: int) -> torch.Tensor:
    """Unpacking and scaling as one would write it in torch."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32)
    lifted = words.view(-1, 1, BLOCK) + limit * 0x01010101
    digits = (lifted >> shifts.view(1, 4, 1) & 255) - limit
    return digits.view(-1, BLOCK).float() * (norm / limit)[:, None]


def numpy_decode(words, norm, limit):
    """The same in NumPy."""
    lifted = words.reshape(-1, 1, BLOCK) + np.int32(limit * 0x01010101)
    digits = (lifted >> np.arange(0, 32, 8, dtype=np.int32)[:, None] & 255) - np.int32(limit)
    return digits.reshape(-1, BLOCK).astype(np.float32) * (norm / np.float32(limit))[:, None]


def torch_exponential(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Base-2 levels as one would write them in torch."""
    scaled = x.view(-1, BLOCK).abs() / norm[:, None]
    mantissa, exponent = torch.frexp(scaled)
    up = torch.rand_like(scaled) < 2 * mantissa - 1
    index = (2 - exponent - up.int()).clamp_(1, 127)
    return (index * (scaled > 0) + 128 * (x.view(-1, BLOCK) < 0)).to(torch.uint8)


def numpy_exponential(x, norm, random):
    """The same in NumPy."""
    scaled = np.abs(x.reshape(-1, BLOCK)) / norm[:, None]
    mantissa, exponent = np.frexp(scaled)
    up = random.random(scaled.shape, np.float32) < 2 * mantissa - 1
    index = np.clip(2 - exponent - up, 1, 127)
    return (index * (scaled > 0) + 128 * (x.reshape(-1, BLOCK) < 0)).astype(np.uint8)
