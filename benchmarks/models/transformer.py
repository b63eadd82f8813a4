"""The Transformers of the TensorOpt paper: 9.7 GiB, and Transformer-S of 4.8 GiB.

The paper gives the bytes of the parameters in float32 and a batch of 256. The
rest follows the translation models of Mesh-TensorFlow (Shazeer et al. 2018), the
encoder-decoder of Vaswani et al. (2017) widened in heads and hidden layers only:
6 + 6 layers, 1024 channels, heads of 128, 32768 tokens, nothing tied. The widths
that give the bytes within 2 % are chosen here: 96 heads and 65536 hidden units
are 9.75 GiB, 48 heads and 30720 units 4.88 GiB. Sequences have 64 tokens.
Positions are sinusoids, layers normalise their input.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
LENGTH = 64


@dataclass(frozen=True)
class TransformerConfig:
    """The defaults are the sizes of the paper's larger model."""

    vocab_size: int = 32768
    n_layer: int = 6  # of the encoder, and of the decoder
    n_head: int = 96
    head_size: int = 128
    n_embd: int = 1024
    n_hidden: int = 65536


SMALL = TransformerConfig(n_head=48, n_hidden=30720)


class Attention(nn.Module):
    """Of queries made of ``x`` to keys and values made of ``memory``."""

    def __init__(self, config: TransformerConfig, causal: bool = False) -> None:
        super().__init__()
        self.head_size = config.head_size
        self.causal = causal
        inner = config.n_head * config.head_size
        self.q = nn.Linear(config.n_embd, inner, bias=False)
        self.k = nn.Linear(config.n_embd, inner, bias=False)
        self.v = nn.Linear(config.n_embd, inner, bias=False)
        self.o = nn.Linear(inner, config.n_embd, bias=False)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """(batch, time, channels) -> the same shape."""

        def heads(y: Tensor) -> Tensor:
            return y.view(y.shape[0], y.shape[1], -1, self.head_size).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory)), is_causal=self.causal
        )
        return self.o(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class FeedForward(nn.Module):
    """Two linear layers and a ReLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.n_embd, config.n_hidden)
        self.down = nn.Linear(config.n_hidden, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, channels) -> the same shape."""
        return self.down(F.relu(self.up(x)))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each on a normalised input, added to it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.n_embd)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.n_embd)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, channels) -> the same shape."""
        y = self.attention_norm(x)
        x = x + self.attention(y, y)
        return x + self.mlp(self.mlp_norm(x))


class DecoderLayer(nn.Module):
    """As the encoder's, causal, with attention to the encoder in between."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.n_embd)
        self.attention = Attention(config, causal=True)
        self.cross_norm = nn.LayerNorm(config.n_embd)
        self.cross = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.n_embd)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """(batch, time, channels) -> the same shape."""
        y = self.attention_norm(x)
        x = x + self.attention(y, y)
        x = x + self.cross(self.cross_norm(x), memory)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Source, shifted target and target tokens (batch, time) -> mean cross entropy."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.target_embed = nn.Embedding(config.vocab_size, config.n_embd)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.n_layer))
        self.encoder_norm = nn.LayerNorm(config.n_embd)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_layer))
        self.decoder_norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def positions(self, time: int, like: Tensor) -> Tensor:
        """Sines and cosines, (time, channels)."""
        size = self.config.n_embd
        steps = torch.arange(0, size, 2, device=like.device, dtype=like.dtype)
        rates = torch.exp(steps * (-math.log(10000.0) / size))
        at = torch.arange(time, device=like.device, dtype=like.dtype)
        angles = at.unsqueeze(1) * rates.unsqueeze(0)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    def embedded(self, table: nn.Embedding, tokens: Tensor) -> Tensor:
        """(batch, time) -> (batch, time, channels)."""
        x = table(tokens) * math.sqrt(self.config.n_embd)
        return x + self.positions(tokens.shape[1], x)

    def forward(self, source: Tensor, shifted: Tensor, target: Tensor) -> Tensor:
        """The mean loss of predicting ``target`` from the source and the tokens
        before each, ``shifted``."""
        memory = self.embedded(self.source_embed, source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x = self.embedded(self.target_embed, shifted)
        for layer in self.decoder:
            x = layer(x, memory)
        logits = self.head(self.decoder_norm(x))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    """A batch of the paper's size."""
    source, shifted, target = (torch.zeros(BATCH, LENGTH, dtype=torch.long) for _ in range(3))
    return source, shifted, target
