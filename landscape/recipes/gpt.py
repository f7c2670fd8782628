"""A small GPT that reads bytes: a decoder-only transformer (Radford et al. 2019), its training and callback."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256  # tokens of the vocabulary
CONTEXT = 128  # tokens of a sequence


class TransformerBlock(nn.Module):
    """Causal self-attention and two dense layers, each after a normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        """States [N, T, width] → states of the same shape."""
        count, length, width = states.shape
        parts = self.attention(self.norm1(states)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.project(mixed.transpose(1, 2).reshape(count, length, width))
        return states + self.contract(F.gelu(self.expand(self.norm2(states))))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Tokens [N, T] → logits [N, T, vocabulary]; the output head is the transposed embedding.

    Args:
        vocabulary: the number of different tokens.
        context: the longest sequence.
        width: of the states; a multiple of `heads`.
        depth: the number of blocks.
    """

    def __init__(
        self, vocabulary: int = BYTES, context: int = CONTEXT, width: int = 128, depth: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([TransformerBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the token after each token."""
        states = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))  # type: ignore[no-any-return]
