"""A causal transformer over characters (GPT-2's arrangement, layer norms first)."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.gather = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Every position looks at itself and at those before it."""
        parts = self.queries_keys_values(x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.gather(seen.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, position, width) to the same."""
        x = x + self.attention(self.before_attention(x))
        return x + self.feed_forward(self.before_forward(x))


class Transformer(nn.Module):
    """Logits of the next token at every position; 10.9 M parameters as it stands for bytes."""

    def __init__(
        self, vocabulary: int, width: int = 384, depth: int = 6, heads: int = 6, context: int = 256
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.last_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, position) of token numbers to (batch, position, vocabulary)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.last_norm(self.blocks(x)))
