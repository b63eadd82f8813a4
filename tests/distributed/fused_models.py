"""Layers whose weights hold several of a kind, one block after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # [batch, heads, tokens, size]


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    batch, tokens, width = x.shape
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)


def by_split(y: torch.Tensor, heads: int) -> Heads:
    """As nanoGPT."""
    q, k, v = y.split(y.shape[-1] // 3, dim=2)
    return _heads(q, heads), _heads(k, heads), _heads(v, heads)


def by_chunk(y: torch.Tensor, heads: int) -> Heads:
    q, k, v = y.chunk(3, -1)
    return _heads(q, heads), _heads(k, heads), _heads(v, heads)


def by_slice(y: torch.Tensor, heads: int) -> Heads:
    """As Phi-3, with as many heads of keys as of queries."""
    n = y.shape[-1] // 3
    q, k, v = y[..., :n], y[..., n : 2 * n], y[..., 2 * n :]
    return _heads(q, heads), _heads(k, heads), _heads(v, heads)


def by_unbind(y: torch.Tensor, heads: int) -> Heads:
    """As timm."""
    batch, tokens, width = y.shape
    parts = y.reshape(batch, tokens, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    q, k, v = parts.unbind(0)
    return q, k, v


def by_index(y: torch.Tensor, heads: int) -> Heads:
    batch, tokens, width = y.shape
    parts = y.view(batch, tokens, 3, heads, width // 3 // heads).transpose(1, 3)
    return parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]


def heads_outermost(y: torch.Tensor, heads: int) -> Heads:
    """As GPT-NeoX: each head has its queries, keys and values."""
    batch, tokens, width = y.shape
    q, k, v = y.view(batch, tokens, heads, width // heads).transpose(1, 2).chunk(3, -1)
    return q, k, v


class Transposed(nn.Module):
    """As Conv1D of transformers: the weight is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.1)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], rows.shape[-1])


class Attention(nn.Module):
    """One layer makes queries, keys and values."""

    def __init__(
        self,
        layer: nn.Module,
        taken_apart: Callable[[torch.Tensor, int], Heads],
        width: int = 32,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = layer
        self.out = nn.Linear(width, width)
        self.taken_apart = taken_apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.taken_apart(self.qkv(x), self.heads)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(seen.transpose(1, 2).reshape(x.shape))
        return out


def grouped_by_slice(y: torch.Tensor, sizes: tuple[int, int]) -> Heads:
    """As Phi-3."""
    q, kv = sizes
    return y[..., :q], y[..., q : q + kv], y[..., q + kv :]


def grouped_by_split(y: torch.Tensor, sizes: tuple[int, int]) -> Heads:
    q, kv = sizes
    first, second, third = y.split([q, kv, kv], dim=-1)
    return first, second, third


class GroupedAttention(nn.Module):
    """Two heads of queries for each head of keys and values, all of one layer."""

    def __init__(
        self,
        taken_apart: Callable[[torch.Tensor, tuple[int, int]], Heads],
        width: int = 48,
        heads: int = 24,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.sizes = width, width // 2
        self.qkv = nn.Linear(width, 2 * width, bias=bias)
        self.out = nn.Linear(width, width)
        self.taken_apart = taken_apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.taken_apart(self.qkv(x), self.sizes)
        q, k, v = _heads(q, self.heads), _heads(k, self.heads // 2), _heads(v, self.heads // 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: torch.Tensor = self.out(seen.transpose(1, 2).reshape(x.shape))
        return out


class Multihead(nn.Module):
    """PyTorch's own attention: of x to itself, or to ``others`` as well; ``weighed``: it gives its
    weights, too, as it does by default."""

    def __init__(self, others: int = 0, weighed: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.others = others
        self.weighed = weighed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys = x if self.others == 0 else x.tanh()
        values = keys if self.others < 2 else x.sigmoid()
        out: torch.Tensor = self.attention(x, keys, values, need_weights=self.weighed)[0]
        return out


class Gated(nn.Module):
    """Both halves of a gated layer in one weight, as in Phi-3."""

    def __init__(self, width: int = 32, inner: int = 48) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: torch.Tensor = self.down(F.silu(gate) * up)
        return out


class NarrowGated(Gated):
    """Computes with weights in a narrower dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = x.float()
        gate, up = F.linear(narrow, self.gate_up.weight.float()).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down.weight.float()).to(x.dtype)


class Fused(nn.Module):
    """The layers one after the other, each beside what goes into it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def split_and_gated() -> Fused:
    return Fused(Attention(nn.Linear(32, 96), by_split), Gated())


def grouped() -> Fused:
    return Fused(GroupedAttention(grouped_by_slice, bias=False), GroupedAttention(grouped_by_split))


def odd_sizes() -> Fused:
    """5 heads, and features that no mesh divides."""
    return Fused(
        Attention(nn.Linear(30, 90), by_split, width=30, heads=5),
        Gated(width=30, inner=23),
        NarrowGated(width=30, inner=23),
    )


def other_ways() -> Fused:
    return Fused(
        Attention(Transposed(32, 96), by_chunk),
        Attention(nn.Linear(32, 96, bias=False), by_unbind),
        Multihead(),
        Multihead(others=1),
        Multihead(weighed=True),
    )
