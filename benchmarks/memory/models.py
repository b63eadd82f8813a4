"""Models of some MiB whose memory is predicted and measured, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig

from benchmarks.models import rnn as rnn_models
from benchmarks.models import transformer as transformer_models
from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _tokens(count: int, batch: int, length: int, vocab_size: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(vocab_size, (count, batch, length), generator=generator))


class Mlp(nn.Module):
    """Two linear layers and the loss; with autocast the layers compute in bfloat16."""

    def __init__(self, autocast: bool = False) -> None:
        super().__init__()
        self.autocast = autocast
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(batch, 256) twice -> the loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            output = self.down(nn.functional.gelu(self.up(x)))
        return nn.functional.mse_loss(output.float(), y)


def mlp() -> Example:
    """2 MiB of parameters, 512 samples."""
    return Mlp(), (torch.randn(512, 256), torch.randn(512, 256))


def mixed() -> Example:
    """The same with half the bytes for each number that is computed with."""
    return Mlp(autocast=True), (torch.randn(512, 256), torch.randn(512, 256))


def gpt() -> Example:
    """2 layers of 128 with dropout, 16 x 64 tokens."""
    config = GPTConfig(vocab_size=512, block_size=64, n_layer=2, n_head=4, n_embd=128, dropout=0.1)
    return GPT(config), _tokens(2, 16, 64, 512)


def llama() -> Example:
    """2 layers of 128 with grouped keys, 16 x 64 tokens."""
    config = LlamaConfig(vocab_size=512, n_layer=2, n_head=8, n_kv_head=4, n_embd=128, n_hidden=320)
    return Llama(config), _tokens(2, 16, 64, 512)


def transformer() -> Example:
    """Encoder and decoder of 2 layers, 16 x 32 tokens."""
    config = transformer_models.TransformerConfig(
        vocab_size=512, n_layer=2, n_head=4, head_size=32, n_embd=128, n_hidden=256
    )
    return transformer_models.Transformer(config), _tokens(3, 16, 32, 512)


def _rnn(cell: str) -> Example:
    config = rnn_models.RNNConfig(vocab_size=512, n_layer=2, n_hidden=128, cell=cell)
    return rnn_models.RNN(config), _tokens(2, 32, 32, 512)


def resnet() -> Example:
    """Bottleneck blocks with batch normalisation, 16 images of 32 x 32."""
    config = WideResNetConfig(blocks=(1, 1), width=16, image_size=32, n_class=64)
    return WideResNet(config), (torch.randn(16, 3, 32, 32), torch.randint(64, (16,)))


class Experts(nn.Module):
    """Two of four gated experts for each token, as many tokens for each: in the calls
    of Hugging Face's experts, whose product this is."""

    def __init__(self) -> None:
        super().__init__()
        import transformers.integrations.moe  # noqa: F401 (registers the product)

        self.router = nn.Linear(128, 4)
        self.register_buffer("chosen", torch.arange(1024).reshape(512, 2) % 4)
        self.up = nn.Parameter(torch.randn(4, 512, 128) / 11)
        self.down = nn.Parameter(torch.randn(4, 128, 256) / 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(512, 128) twice -> the loss."""
        chosen = self.chosen
        assert isinstance(chosen, torch.Tensor)
        weights = self.router(x).softmax(-1).gather(1, chosen).reshape(-1)
        expert, order = torch.sort(chosen.reshape(-1))
        counts = torch.histc(expert.float(), bins=4, min=0, max=3)
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
        product = torch.ops.transformers.grouped_mm_fallback
        gate, up = product(x[order // 2], self.up.transpose(-2, -1), ends).chunk(2, dim=-1)
        each = product(nn.functional.silu(gate) * up, self.down.transpose(-2, -1), ends)
        each = each * weights[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.size(0))
        total = each[inverse].view(x.size(0), 2, x.size(1)).sum(dim=1)
        return nn.functional.mse_loss(total, y)


def experts() -> Example:
    """1.5 MiB of parameters, 512 tokens."""
    return Experts(), (torch.randn(512, 128), torch.randn(512, 128))


MODELS: dict[str, Callable[[], Example]] = {
    "mlp": mlp,
    "mixed": mixed,
    "experts": experts,
    "resnet": resnet,
    "gpt": gpt,
    "llama": llama,
    "transformer": transformer,
    "lstm": lambda: _rnn("lstm"),
    "gru": lambda: _rnn("gru"),
}


def make(name: str) -> Example:
    """The model with the same parameters in every process."""
    torch.manual_seed(0)
    return MODELS[name]()
