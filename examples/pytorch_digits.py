"""A small CNN on scikit-learn's digits, data-parallel with Horovod.

horovodrun -np 2 python examples/pytorch_digits.py --compression fp16
"""

import argparse
import json
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from rich.progress import track
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 x 8 pixels in a fixed random order, and their labels."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(data.target)[order]


def main() -> None:
    """Train, validate, report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result here, too")
    options = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    images, labels = digits()
    train, valid = slice(hvd.rank(), 1400, hvd.size()), slice(1400, None)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    compression = COMPRESSIONS[options.compression]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        compression=compression,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    losses, start = [], time.perf_counter()
    for _ in track(range(options.epochs), options.compression, disable=hvd.rank() != 0):
        order = torch.randperm(len(labels[train]))
        for batch in order.split(options.batch):
            optimizer.zero_grad()
            loss = cross_entropy(model(images[train][batch]), labels[train][batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    seconds = time.perf_counter() - start

    if hvd.rank() == 0:
        right = model(images[valid]).argmax(1) == labels[valid]
        sent = [compression.compress(p.detach())[0] for p in model.parameters()]
        result = {
            "compression": options.compression,
            "accuracy": right.float().mean().item(),
            "steps_per_second": len(losses) / seconds,
            "bytes_per_step": sum(tensor.numel() * tensor.element_size() for tensor in sent),
            "losses": losses,
        }
        print(
            "{compression}: accuracy {accuracy:.1%}, {steps_per_second:.0f} steps/s".format(
                **result
            )
        )
        if options.json:
            options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
