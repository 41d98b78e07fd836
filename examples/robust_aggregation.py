"""A mean over workers trusts every one of them; a registered reduction need not.

    horovodrun -np 5 python examples/robust_aggregation.py

Rank 0 sends garbage. Exponential codes are combined by a function of your own, here a trimmed
mean: without the largest and the smallest value of every element. A summing allreduce cannot.
"""

import horovod.torch as hvd
import numpy as np
import torch

from horovod_gqsgd.codecs.exponential import Levels
from horovod_gqsgd.torch import GlobalQSGD, register_reduction


def trimmed_mean(codes: np.ndarray, levels: Levels, dither: np.ndarray) -> np.ndarray:
    """``codes``: uint8[workers, elements]; returns the codes of one row."""
    values = np.sort(levels.decode(codes), axis=0)  # float32 in [-1, 1], in units of the norm
    trim = 1 if len(values) > 2 else 0
    return levels.encode(values[trim : len(values) - trim].mean(axis=0), dither)


def main() -> None:
    """Fit a vector to noisy observations of it, once with each reduction."""
    hvd.init()
    # Every rank registers the same function under the same name; ranks that differ are told so.
    register_reduction("trimmed_mean", trimmed_mean, version=1)
    truth = torch.linspace(-1, 1, 2048)
    torch.manual_seed(hvd.rank())
    for reduction in ("exact", "trimmed_mean"):
        model = torch.zeros(2048, requires_grad=True)
        compression = GlobalQSGD(levels="exponential", bits=8, reduction=reduction)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([model], lr=0.2), [(f"model.{reduction}", model)], compression
        )
        for _ in range(60):
            optimizer.zero_grad()
            noise = torch.randn(2048)
            target = 100 * noise if hvd.rank() == 0 else truth + 0.1 * noise
            ((model - target) ** 2).sum().backward()
            optimizer.step()
        if hvd.rank() == 0:
            print(f"{reduction:>12}: error {(model - truth).norm() / truth.norm():.3f}")


if __name__ == "__main__":
    main()
