"""Click-through prediction as DeepLight and its kin do it: a large embedding, a small MLP.

Much to send for little to compute, which is where compression of gradients pays most. Gradients
of the embedding are dense, as Horovod reduces them with ``sparse_as_dense``.
"""

import torch
from torch import nn

FIELDS = 26  # categorical features of an advertisement in the Criteo data


class EmbeddingClassifier(nn.Module):
    """One logit per sample; 5.9 M parameters, 5.5 M of them in the two embeddings."""

    def __init__(self, rows: int = 500_000, width: int = 10, hidden: int = 400) -> None:
        super().__init__()
        self.rows = rows
        self.first_order = nn.Embedding(rows, 1)
        self.embedding = nn.Embedding(rows, width)
        self.mlp = nn.Sequential(
            nn.Linear(FIELDS * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, field) of row numbers to (batch,) logits; pairs of fields interact, too."""
        vectors = self.embedding(features)
        # Σ_{i<j} <v_i, v_j> = (‖Σ v_i‖² − Σ ‖v_i‖²) / 2
        pairs = (vectors.sum(1).square() - vectors.square().sum(1)).sum(1) / 2
        linear = self.first_order(features).sum((1, 2))
        return linear + pairs + self.mlp(vectors.flatten(1)).squeeze(1)
