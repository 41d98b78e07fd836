"""Things to learn that come with Python and scikit-learn: digits, and the text of Python itself."""

import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from models.transformer import Transformer
from torch import nn
from torch.nn.functional import cross_entropy

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))

from pytorch_digits import digits, network  # the example that users read

Batch = tuple[torch.Tensor, torch.Tensor]


class Task(Protocol):
    """Data, a model for it, and how well the model does."""

    name: str
    metric: str
    steps: int  # until it is learnt

    def network(self) -> nn.Module:
        """A model, from torch's random state."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Before Horovod distributes it."""

    def rate(self, step: int) -> float:
        """The learning rate at a step, relative to that of the optimizer."""

    def batches(self, seed: int, rank: int, size: int) -> Iterator[Batch]:
        """Training data of one rank, without end."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Of one batch."""

    def evaluate(self, model: nn.Module) -> float:
        """The metric, on data that no rank trains on."""


class Digits:
    """The task of examples/pytorch_digits.py."""

    name = "digits"
    metric = "accuracy, %"
    steps = 264  # 12 epochs on two ranks
    batch = 32
    examples = 1400  # of 1,797; the others validate

    @cached_property
    def data(self) -> Batch:
        return digits()

    def network(self) -> nn.Module:
        return network()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def rate(self, step: int) -> float:  # noqa: ARG002
        return 1.0

    def batches(self, seed: int, rank: int, size: int) -> Iterator[Batch]:
        images, labels = (part[rank : self.examples : size] for part in self.data)
        generator = torch.Generator().manual_seed(seed * size + rank)
        while True:
            for chosen in torch.randperm(len(labels), generator=generator).split(self.batch):
                yield images[chosen], labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        images, labels = (part[self.examples :] for part in self.data)
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


class Characters:
    """A small transformer that continues the source text of Python's standard library."""

    name = "characters"
    metric = "validation loss, bits per character"
    steps = 300
    batch = 16
    length = 64
    vocabulary = 128  # ASCII

    @cached_property
    def data(self) -> torch.Tensor:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        found = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return found[found < self.vocabulary].long()

    @property
    def held_back(self) -> int:
        """Characters at the end that are for validation."""
        return len(self.data) // 20

    def network(self) -> nn.Module:
        return Transformer(self.vocabulary, width=128, depth=2, heads=4, context=self.length)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=3e-3)

    def rate(self, step: int) -> float:
        return min((step + 1) / 20, 1.0) * (1 - 0.95 * step / self.steps)

    def windows(self, starts: torch.Tensor) -> Batch:
        """Text at the given places, and the same shifted by one."""
        text = self.data[starts[:, None] + torch.arange(self.length + 1)]
        return text[:, :-1], text[:, 1:]

    def batches(self, seed: int, rank: int, size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed * size + rank)
        end = len(self.data) - self.held_back - self.length - 1
        while True:
            yield self.windows(torch.randint(end, (self.batch,), generator=generator))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        first = len(self.data) - self.held_back
        starts = torch.linspace(first, len(self.data) - self.length - 1, 256).long()
        return self.loss(model, self.windows(starts)).item() / torch.log(torch.tensor(2.0)).item()


TASKS: dict[str, Any] = {task.name: task for task in (Digits, Characters)}
