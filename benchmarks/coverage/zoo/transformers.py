"""Transformers of PyTorch's own layers and by hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.coverage.zoo.data import LENGTH, text, tokens
from benchmarks.coverage.zoo.example import Build, Example
from examples.gpt import GPT, GPTConfig

WIDTH = 32
HEADS = 4


class EncoderModel(nn.Module):
    """A causal language model of ``nn.TransformerEncoder``, which is told that its mask is causal,
    or looks itself."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        vocabulary = text().vocab_size
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)
        self.is_causal = True if norm_first else None

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Ids and targets (batch, length) to the loss."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        hidden = self.encoder(self.embedding(ids), mask=mask, is_causal=self.is_causal)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class TranslationModel(nn.Module):
    """``nn.Transformer`` from a text to the one that follows; of its mask as above."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        vocabulary = text().vocab_size
        self.source = nn.Embedding(vocabulary, WIDTH)
        self.target = nn.Embedding(vocabulary, WIDTH)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, 2, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        self.head = nn.Linear(WIDTH, vocabulary)
        self.told = {"tgt_is_causal": True} if norm_first else {}

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (batch, length) and (batch, length + 1) to the loss."""
        shown, expected = target[:, :-1], target[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(shown.shape[1])
        hidden = self.transformer(
            self.source(source), self.target(shown), tgt_mask=mask, **self.told
        )
        return F.cross_entropy(self.head(hidden).flatten(0, 1), expected.flatten())


class AttentionModel(nn.Module):
    """``nn.MultiheadAttention`` alone; its weights, if asked for, enter the loss."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Both (batch, length, WIDTH)."""
        output, weights = self.attention(x, x, x, need_weights=self.need_weights)
        loss = F.mse_loss(output, y)
        return loss if weights is None else loss + weights.square().mean()


class ManualAttention(nn.Module):
    """Attention written out, with the mask as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        mask = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, WIDTH) to the same shape."""
        batch, length, width = x.shape
        heads = (batch, length, HEADS, width // HEADS)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        mixed = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous()
        return x + self.out(mixed.view(batch, length, width))


class ManualGPT(nn.Module):
    """Blocks of ``ManualAttention``; the embedding is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(text().vocab_size, WIDTH)
        self.wpe = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(ManualAttention(), ManualAttention())
        self.head = nn.Linear(WIDTH, text().vocab_size, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Ids and targets (batch, length) to the loss."""
        positions = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        hidden = self.blocks(self.wte(ids) + self.wpe(positions))
        return F.cross_entropy(self.head(hidden).view(-1, text().vocab_size), targets.view(-1))


class Autocast(nn.Module):
    """Another module in bfloat16 where that is safe."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> Tensor:
        """As the module inside."""
        with torch.autocast(args[0].device.type, dtype=torch.bfloat16):
            loss: Tensor = self.inner(*args)
        return loss


def gpt() -> nn.Module:
    """With biases, embedding and head tied."""
    config = GPTConfig(
        text().vocab_size, LENGTH, n_layer=2, n_head=HEADS, n_embd=WIDTH, tie_weights=True
    )
    return GPT(config)


def attention(need_weights: bool) -> Example:
    x, y = torch.randn(2, 8, LENGTH, WIDTH)
    return Example(AttentionModel(need_weights), (x, y))


def translation(norm_first: bool) -> Example:
    source, following = tokens()
    start = torch.zeros(source.shape[0], 1, dtype=torch.long)
    return Example(TranslationModel(norm_first), (source, torch.cat([start, following], 1)))


MODELS: dict[str, Build] = {
    "encoder_post_norm": lambda: Example(EncoderModel(norm_first=False), tokens()),
    "encoder_pre_norm": lambda: Example(EncoderModel(norm_first=True), tokens()),
    "transformer_post_norm": lambda: translation(norm_first=False),
    "transformer_pre_norm": lambda: translation(norm_first=True),
    "attention": lambda: attention(need_weights=False),
    "attention_weights": lambda: attention(need_weights=True),
    "nanogpt": lambda: Example(gpt(), tokens()),
    "nanogpt_manual": lambda: Example(ManualGPT(), tokens()),
    "nanogpt_autocast": lambda: Example(Autocast(gpt()), tokens(), precision=torch.bfloat16),
}
