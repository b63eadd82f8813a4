"""The GPT of the examples, with a layer each for queries, keys and values.

Written so that heads can be split by hand: the number of heads is told by the size of what
the layers give.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, GPTConfig


class Attention(nn.Module):
    """Causal, with a layer each for queries, keys and values."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        size = config.n_embd
        self.head_size = size // config.n_head
        self.query, self.key, self.value, self.proj = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, time, channels) to the same shape."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


def gpt(config: GPTConfig) -> GPT:
    """The model of the examples with this attention, and its initialization."""
    model = GPT(config)
    for block in model.blocks:
        block.attn = Attention(config)
    model.apply(model._init_weights)
    return model
