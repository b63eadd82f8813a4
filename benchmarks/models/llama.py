"""A Llama-like language model: rotary positions, grouped queries, SwiGLU."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class LlamaConfig:
    """The defaults are the sizes of Llama 3 8B."""

    vocab_size: int = 128256
    n_layer: int = 32
    n_head: int = 32
    n_kv_head: int = 8
    n_embd: int = 4096
    n_hidden: int = 14336
    rope_base: float = 500000.0
    n_head_size: int = 0  # of queries and keys; 0: n_embd / n_head

    @property
    def head_size(self) -> int:
        """Of queries, keys and values."""
        return self.n_head_size or self.n_embd // self.n_head


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, time, channels)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention in which several query heads share a key head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        kv_size = config.n_kv_head * self.head_size
        q_size = config.n_head * self.head_size
        self.q = nn.Linear(config.n_embd, q_size, bias=False)
        self.k = nn.Linear(config.n_embd, kv_size, bias=False)
        self.v = nn.Linear(config.n_embd, kv_size, bias=False)
        self.o = nn.Linear(q_size, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, time, channels) -> the same shape."""
        batch, time, _ = x.shape

        def heads(y: Tensor) -> Tensor:
            return y.view(batch, time, -1, self.head_size).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            rotate(heads(self.q(x)), cos, sin),
            rotate(heads(self.k(x)), cos, sin),
            heads(self.v(x)),
            is_causal=True,
            enable_gqa=True,
        )
        return self.o(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and SwiGLU, each on a normalised input, added to it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.n_embd)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.n_embd)
        self.gate = nn.Linear(config.n_embd, config.n_hidden, bias=False)
        self.up = nn.Linear(config.n_embd, config.n_hidden, bias=False)
        self.down = nn.Linear(config.n_hidden, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, time, channels) -> the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Token ids and targets (batch, time) -> mean cross entropy."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def positions(self, time: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, (time, head size)."""
        size = self.config.head_size
        steps = torch.arange(0, size, 2, device=like.device, dtype=like.dtype)
        rates = self.config.rope_base ** (-steps / size)
        at = torch.arange(time, device=like.device, dtype=like.dtype)
        angles = at.unsqueeze(1) * rates.unsqueeze(0)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of predicting targets."""
        x = self.embed(tokens)
        cos, sin = self.positions(tokens.shape[1], x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
