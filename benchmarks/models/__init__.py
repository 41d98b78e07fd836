"""Models for benchmarks, with synthetic data: nothing to download, no torchvision.

>>> workload("embedding", batch=4).parameter_count
5925601
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from .embedding import FIELDS, EmbeddingClassifier
from .resnet import ResNet50
from .transformer import Transformer
from .vgg import VGG16

CLASSES = 1000
VOCABULARY = 256


@dataclass(frozen=True)
class Workload:
    """A model and one batch, which serves for every step."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    unit: str  # what a batch consists of: "img", "sequence" or "sample"

    @property
    def parameter_count(self) -> int:
        """Elements of all gradients."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def tensor_count(self) -> int:
        """Gradients."""
        return sum(1 for _ in self.model.parameters())

    def loss(self) -> torch.Tensor:
        """Forward."""
        return self.criterion(self.model(self.inputs), self.targets)

    def to(self, device: torch.device) -> "Workload":
        """The same on another device."""
        model, inputs = self.model.to(device), self.inputs.to(device)
        return Workload(model, inputs, self.targets.to(device), self.criterion, self.unit)


def _images(model: Callable[[], nn.Module]) -> Callable[[int, int, int], Workload]:
    def make(batch: int, image: int, sequence: int) -> Workload:  # noqa: ARG001
        inputs, targets = torch.randn(batch, 3, image, image), torch.randint(CLASSES, (batch,))
        return Workload(model(), inputs, targets, cross_entropy, "img")

    return make


def _transformer(batch: int, image: int, sequence: int) -> Workload:  # noqa: ARG001
    text = torch.randint(VOCABULARY, (batch, sequence + 1))
    model = Transformer(VOCABULARY, context=max(sequence, 256))

    def criterion(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Workload(model, text[:, :-1], text[:, 1:], criterion, "sequence")


def _embedding(batch: int, image: int, sequence: int) -> Workload:  # noqa: ARG001
    model = EmbeddingClassifier()
    inputs = torch.randint(model.rows, (batch, FIELDS))
    targets = torch.randint(2, (batch,)).float()
    return Workload(model, inputs, targets, binary_cross_entropy_with_logits, "sample")


MODELS: dict[str, Callable[[int, int, int], Workload]] = {
    "resnet50": _images(lambda: ResNet50(CLASSES)),
    "vgg16": _images(lambda: VGG16(CLASSES)),
    "vgg16-pooled": _images(lambda: VGG16(CLASSES, pooled=1)),
    "transformer": _transformer,
    "embedding": _embedding,
}


def workload(name: str, batch: int, image: int = 64, sequence: int = 64) -> Workload:
    """A named model; ``image`` is its side in pixels, ``sequence`` a number of tokens."""
    return MODELS[name](batch, image, sequence)
