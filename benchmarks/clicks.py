"""Click-through prediction on clicks made here, so that the best possible AUC is known.

A sample has eight categorical features, drawn by Zipf's law as in logs of advertisements. Its odds
of a click follow a factorisation machine, from a weight of every category and the inner products of
pairs; chance decides the rest. An embedding and an MLP learn it.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

FIELDS, CATEGORIES = 8, 5000
WIDTH, HIDDEN = 128, 512  # of the embedding and the MLP: 5.9 M parameters
ZIPF = 1.3

Batch = tuple[torch.Tensor, torch.Tensor]


def area_under_curve(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The chance that a clicked sample scores above one that is not, by the ranks of the scores.

    >>> area_under_curve(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    clicks = np.count_nonzero(clicked)
    least = clicks * (clicks + 1) / 2
    return float((ranks[clicked > 0].sum() - least) / (clicks * (len(scores) - clicks)))


class Clicks:
    """A task as those of `tasks`, whose samples are drawn anew for every batch."""

    name = "clicks"
    metric = "AUC"
    steps = 36
    target = 0.79  # AUC, after some 28 of these steps
    batch = 1024  # of all ranks together
    held_back = 10_000  # samples for validation

    @cached_property
    def _truth(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cumulated frequencies of categories, their weights, and their vectors."""
        generator = np.random.default_rng(0)
        frequencies = np.arange(1, CATEGORIES + 1) ** -ZIPF
        weights = generator.normal(0, 1.5, (FIELDS, CATEGORIES))
        vectors = generator.normal(0, 0.2, (FIELDS, CATEGORIES, 4))
        return np.cumsum(frequencies / frequencies.sum()), weights, vectors

    def _samples(self, count: int, *seed: int) -> tuple[Batch, np.ndarray]:
        """Rows of the embedding and clicks, and the true logits."""
        generator = np.random.default_rng(seed)
        cumulated, weights, vectors = self._truth
        chosen = np.searchsorted(cumulated[:-1], generator.random((count, FIELDS)))
        fields = np.arange(FIELDS)
        of_field = vectors[fields, chosen]
        # Σ_{i<j} <v_i, v_j> = (‖Σ v_i‖² − Σ ‖v_i‖²) / 2
        pairs = (np.square(of_field.sum(1)).sum(1) - np.square(of_field).sum((1, 2))) / 2
        logits = 1.2 * (weights[fields, chosen].sum(1) + pairs) / np.sqrt(FIELDS) - 1
        clicked = generator.random(count) < 1 / (1 + np.exp(-logits))
        rows = torch.from_numpy(chosen + CATEGORIES * fields)
        return (rows, torch.from_numpy(clicked.astype(np.float32))), logits

    @cached_property
    def _validation(self) -> tuple[Batch, np.ndarray]:
        return self._samples(self.held_back, 0)

    @cached_property
    def best(self) -> float:
        """AUC of whoever knows the true odds."""
        (_rows, clicked), logits = self._validation
        return area_under_curve(logits, clicked.numpy())

    def network(self) -> nn.Module:
        """An embedding with dense gradients, as weight decay and most optimizers need them."""
        embedding = nn.Embedding(FIELDS * CATEGORIES, WIDTH)
        nn.init.normal_(embedding.weight, 0, 0.02)
        return nn.Sequential(
            embedding, nn.Flatten(), nn.Linear(FIELDS * WIDTH, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1), nn.Flatten(0),
        )  # fmt: skip

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)

    def rate(self, step: int) -> float:  # noqa: ARG002
        return 1.0

    def batches(self, seed: int, rank: int, size: int) -> Iterator[Batch]:
        step = 0
        while True:
            yield self._samples(self.batch // size, 1, seed, rank, step)[0]
            step += 1

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return binary_cross_entropy_with_logits(model(batch[0]), batch[1])

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        (rows, clicked), _logits = self._validation
        return area_under_curve(model(rows).numpy(), clicked.numpy())
