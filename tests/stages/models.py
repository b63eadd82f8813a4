"""Models whose graphs are hard to cut, beside those of ``tests/distributed/models.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.distributed.models import Case
from tests.distributed.models import make as make_known


class Skips(nn.Module):
    """A U-Net: what the way down gives is used on the way up, in opposite order."""

    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.down:
            x = layer(x).relu()
            kept.append(x)
        for layer in self.up:
            x = layer(torch.cat([x, kept.pop()], -1)).relu()
        return F.cross_entropy(self.head(x), y)


class Drops(nn.Module):
    """Layers with dropout between."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.rate = rate

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(layer(x).relu(), self.rate, self.training) + x
        return F.mse_loss(x, y)


class Normalised(nn.Module):
    """Buffers that forward changes, one of which is a number of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), y)


class Masked(nn.Module):
    """A mask and positions that all layers use, a value without gradients that goes far, and a
    parameter that all layers scale with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        positions = torch.arange(length).to(self.scale.dtype)
        mask = (tokens > 2).unsqueeze(-1)
        scale = self.scale * 2
        h = self.table(tokens) + positions.sin()[:, None]
        chosen = h.detach().argmax(-1)
        for layer in self.layers:
            h = h + (layer(h) * scale).masked_fill(~mask, 0)
        logits = self.head(h)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return loss + F.one_hot(chosen, 8).to(h.dtype).mul(h).mean()


class Shares(nn.Module):
    """A weight and a buffer that layers in the middle and at the end use, and the first does not;
    others of other sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("scale", torch.rand(8) + 0.5)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.wide = nn.Linear(8, 24, bias=False)
        self.narrow = nn.Linear(24, 8, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x).relu()
        x = (self.layers[1](x) @ self.both * self.scale).relu()
        x = self.narrow(self.wide(x).relu())
        return F.mse_loss(x @ self.both * self.scale, y)


class Translator(nn.Module):
    """An encoder and a decoder with dropout, whose embeddings and output layer share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*SIZES, **KIND), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*SIZES, **KIND), 2)

    def forward(self, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        memory = self.encoder(self.table(tokens), src_key_padding_mask=tokens == 0)
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], dtype=memory.dtype)
        moved = self.table(y.roll(1, 1))
        h = self.decoder(moved, memory, tgt_mask=mask, tgt_is_causal=True)
        logits = F.linear(h, self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class FrozenEnds(nn.Module):
    """A body that is trained between a table and a head that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 64).requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 64))
        self.head = nn.Linear(64, 16).requires_grad_(False)

    def forward(self, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.table(tokens)
        h = h + h.tanh().mean(1, keepdim=True)
        logits = self.head(self.body(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Weighed(nn.Module):
    """PyTorch's own attention as it is called by default, which gives its weights: of one layer
    nobody reads them, of the other the loss does. The mask is cast with a memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in "12")
        self.head = nn.Linear(8, 16)

    def forward(self, tokens: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.table(tokens)
        hidden = (tokens == 0).to(h.dtype, memory_format=torch.contiguous_format).mul(-1e4)
        for layer in self.layers:
            seen, weights = layer(h, h, h, key_padding_mask=hidden)
            h = h + seen
        logits = self.head(h)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()) + weights.square().mean()


SIZES = 8, 2, 16  # width, heads and width within
KIND: Any = {"dropout": 0.2, "batch_first": True}


def batch(rows: int, *, of_classes: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, and numbers or classes to learn."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 8, generator=generator)
    if of_classes is None:
        return x, torch.randn(rows, 8, generator=generator)
    return x, torch.randint(0, of_classes, (rows,), generator=generator)


def tokens(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of six tokens, and others."""
    found = torch.randint(0, 16, (2, rows, 6), generator=torch.Generator().manual_seed(5))
    return found[0], found[1]


def images(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """In the memory format of channels last."""
    x = torch.randn(rows, 3, 6, 6, generator=torch.Generator().manual_seed(5))
    return x.to(memory_format=torch.channels_last), torch.arange(rows) % 5


OWN: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "skips": (Skips, lambda rows: batch(rows, of_classes=5)),
    "drops": (Drops, batch),
    "normalised": (Normalised, images),
    "masked": (Masked, tokens),
    "shares": (Shares, batch),
    "translator": (Translator, tokens),
    "frozen_ends": (FrozenEnds, tokens),
    "weighed": (Weighed, tokens),
}
KNOWN = ("gpt", "gpt_tied", "llama", "transformer", "mlp", "vgg", "lstm", "fused", "mixed")


def make(name: str, dtype: torch.dtype = torch.float64, rows: int = 8) -> Case:
    """A model of these and a batch of so many rows, in ``dtype``."""
    if name not in OWN:
        return make_known(name, dtype, rows)
    torch.manual_seed(0)
    kind, inputs = OWN[name]
    args = tuple(t.to(dtype) if t.is_floating_point() else t for t in inputs(rows))
    return Case(kind().to(dtype), args)
