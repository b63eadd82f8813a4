"""Small models and batches for runs that are compared with one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, GPTConfig
from text import load_text

from benchmarks.models.llama import Llama, LlamaConfig
from benchmarks.models.rnn import RNN, RNNConfig
from benchmarks.models.transformer import Transformer, TransformerConfig


@dataclass
class Case:
    """A module, its example arguments, and a loss function if it has none."""

    model: nn.Module
    args: tuple[torch.Tensor, ...]
    loss_fn: Callable[..., torch.Tensor] | None = None
    targets: tuple[torch.Tensor, ...] = ()

    @property
    def keywords(self) -> dict[str, Any]:
        return {"loss_fn": self.loss_fn, "targets": self.targets}

    def loss(self) -> torch.Tensor:
        """What one process computes."""
        output = self.model(*self.args)
        return output if self.loss_fn is None else self.loss_fn(output, *self.targets)


def gpt(tie: bool = False) -> Case:
    text = load_text()
    config = GPTConfig(
        vocab_size=text.vocab_size, block_size=8, n_layer=2, n_head=4, n_embd=32, tie_weights=tie
    )
    return Case(GPT(config), text.batch(0, 8, 8))


def llama() -> Case:
    config = LlamaConfig(vocab_size=64, n_layer=2, n_head=8, n_kv_head=4, n_embd=32, n_hidden=48)
    tokens = torch.randint(0, 64, (2, 4, 8), generator=torch.Generator().manual_seed(1))
    return Case(Llama(config), (tokens[0], tokens[1]))


def rnn(cell: str) -> Case:
    """Two layers of 24 units: a block of gate rows for 4 ranks is a part of a
    gate of an LSTM and parts of two gates of a GRU."""
    config = RNNConfig(vocab_size=32, n_layer=2, n_hidden=24, cell=cell)
    tokens = torch.randint(0, 32, (2, 8, 5), generator=torch.Generator().manual_seed(1))
    return Case(RNN(config), (tokens[0], tokens[1]))


def transformer() -> Case:
    config = TransformerConfig(
        vocab_size=32, n_layer=2, n_head=4, head_size=8, n_embd=16, n_hidden=32
    )
    tokens = torch.randint(0, 32, (3, 8, 6), generator=torch.Generator().manual_seed(1))
    return Case(Transformer(config), (tokens[0], tokens[1], tokens[2]))


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))
    x, y = torch.randn(8, 16), torch.randn(8, 8)
    return Case(model, (x,), nn.functional.mse_loss, (y,))


CASES: dict[str, Callable[[], Case]] = {
    "gpt": gpt,
    "gpt_tied": lambda: gpt(tie=True),
    "llama": llama,
    "lstm": lambda: rnn("lstm"),
    "gru": lambda: rnn("gru"),
    "transformer": transformer,
    "mlp": mlp,
}


def make(name: str, dtype: torch.dtype) -> Case:
    """The case with parameters and floating inputs in ``dtype``; same on all ranks."""
    torch.manual_seed(0)
    case = CASES[name]()

    def cast(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)

    return Case(case.model.to(dtype), cast(case.args), case.loss_fn, cast(case.targets))


def text_batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of the text for the model of ``gpt``."""
    text = load_text()
    return [text.batch(step, 8, 8) for step in range(count)]
