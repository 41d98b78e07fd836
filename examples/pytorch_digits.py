"""A small CNN on scikit-learn's digits, data-parallel with Horovod and compressed gradients.

    horovodrun -np 2 python examples/pytorch_digits.py

A Horovod script like any other: the two lines marked (+) are all that compression takes.
"""

import argparse

import horovod.torch as hvd
import torch
from rich.progress import track
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from horovod_gqsgd.torch import GlobalQSGD  # (+)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 x 8 pixels in a fixed random order, and their labels."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(data.target)[order]


def network() -> nn.Module:
    """151 K parameters, most of them in one layer."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def main() -> None:
    """Train, validate, report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    images, labels = digits()
    train, valid = slice(hvd.rank(), 1400, hvd.size()), slice(1400, None)
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=GlobalQSGD,  # (+)
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    for _ in track(range(options.epochs), "training", disable=hvd.rank() != 0):
        for batch in torch.randperm(len(labels[train])).split(options.batch):
            optimizer.zero_grad()
            cross_entropy(model(images[train][batch]), labels[train][batch]).backward()
            optimizer.step()

    if hvd.rank() == 0:
        right = model(images[valid]).argmax(1) == labels[valid]
        print(f"accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main()
