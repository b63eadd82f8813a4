"""Small models and batches for runs that are compared with one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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
from tests.distributed.fused_models import Fused, grouped, other_ways, split_and_gated
from tests.distributed.fused_models import odd_sizes as odd_fused


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

    def to(self, device: torch.device) -> Case:
        """The same on a device."""
        args, targets = (tuple(t.to(device) for t in ts) for ts in (self.args, self.targets))
        return Case(self.model.to(device), args, self.loss_fn, targets)

    def loss(self) -> torch.Tensor:
        """What one process computes."""
        output = self.model(*self.args)
        return output if self.loss_fn is None else self.loss_fn(output, *self.targets)


def gpt(tie: bool = False, layers: int = 2) -> Case:
    text = load_text()
    config = GPTConfig(
        vocab_size=text.vocab_size,
        block_size=8,
        n_layer=layers,
        n_head=4,
        n_embd=32,
        tie_weights=tie,
    )
    return Case(GPT(config), text.batch(0, 8, 8))


class OddSizes(nn.Module):
    """A table, a hidden layer and classes whose sizes no mesh divides."""

    def __init__(self, vocabulary: int, tie: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, 12)
        self.up = nn.Linear(12, 23)
        self.down = nn.Linear(23, 12)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, vocabulary, bias=not tie)
        if tie:
            self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.table(x)
        h = self.norm(h + self.down(nn.functional.gelu(self.up(h))))
        logits = self.head(h) * 0.5
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def odd_sizes(vocabulary: int, tie: bool = False) -> Case:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocabulary, (2, 12, 4), generator=generator)
    return Case(OddSizes(vocabulary, tie), (tokens[0], tokens[1]))


class Mixed(nn.Module):
    """Computes with parameters in a narrower dtype: some copies have one use, one has two, one
    is of a parameter that is also used as it is, one of what is computed of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, 16))
        self.up = nn.Linear(16, 24)
        self.norm = nn.LayerNorm(24)
        self.twice = nn.Linear(24, 24, bias=False)
        self.scaled = nn.Parameter(torch.randn(16, 24) / 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        narrow = {torch.float64: torch.float32}.get(self.table.dtype, torch.bfloat16)
        linear = nn.functional.linear
        h = nn.functional.embedding(x, self.table).to(narrow)
        h = linear(h, self.up.weight.to(narrow), self.up.bias.to(narrow)).relu()
        h = self.norm(h.to(self.table.dtype)).to(narrow)
        twice = self.twice.weight.to(narrow)
        h = h + linear(linear(h, twice).relu(), twice)
        h = linear(h, (self.scaled * 2).to(narrow))
        logits = linear(h, self.table.to(narrow)).to(self.table.dtype)
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def mixed() -> Case:
    tokens = torch.randint(0, 32, (2, 8, 4), generator=torch.Generator().manual_seed(1))
    return Case(Mixed(), (tokens[0], tokens[1]))


def llama(layers: int = 2) -> Case:
    config = LlamaConfig(
        vocab_size=64, n_layer=layers, n_head=8, n_kv_head=4, n_embd=32, n_hidden=48
    )
    tokens = torch.randint(0, 64, (2, 4, 8), generator=torch.Generator().manual_seed(1))
    return Case(Llama(config), (tokens[0], tokens[1]))


def rnn(cell: str, layers: int = 2) -> Case:
    """Layers of 24 units: a block of gate rows for 4 ranks is a part of a
    gate of an LSTM and parts of two gates of a GRU."""
    config = RNNConfig(vocab_size=32, n_layer=layers, n_hidden=24, cell=cell)
    tokens = torch.randint(0, 32, (2, 8, 5), generator=torch.Generator().manual_seed(1))
    return Case(RNN(config), (tokens[0], tokens[1]))


def transformer(layers: int = 2) -> Case:
    config = TransformerConfig(
        vocab_size=32, n_layer=layers, n_head=4, head_size=8, n_embd=16, n_hidden=32
    )
    tokens = torch.randint(0, 32, (3, 8, 6), generator=torch.Generator().manual_seed(1))
    return Case(Transformer(config), (tokens[0], tokens[1], tokens[2]))


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))
    x, y = torch.randn(8, 16), torch.randn(8, 8)
    return Case(model, (x,), nn.functional.mse_loss, (y,))


class VggBlock(nn.Sequential):
    """Two convolutions, halved by a maximum."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels_in, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )


class Bottleneck(nn.Module):
    """The residual block of ResNeXt: 1x1, 3x3 in groups, 1x1, each normalised."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        half = channels // 2

        def conv(sizes: tuple[int, int], kernel: int = 1, **options: int) -> list[nn.Module]:
            return [nn.Conv2d(*sizes, kernel, bias=False, **options), nn.BatchNorm2d(sizes[1])]

        self.body = nn.Sequential(
            *conv((channels_in, half)),
            nn.ReLU(inplace=True),
            *conv((half, half), 3, padding=1, stride=stride, groups=2),
            nn.ReLU(inplace=True),
            *conv((half, channels)),
        )
        self.skip = nn.Sequential(*conv((channels_in, channels), stride=stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels_in, ...) -> (batch, channels, ...)."""
        result: torch.Tensor = self.body(x)
        result += self.skip(x)
        return nn.functional.relu(result, inplace=True)


def images(model: nn.Module) -> Case:
    """Classification of 8 images into 12 classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, 8, 8, generator=generator)
    y = torch.randint(0, 12, (8,), generator=generator)
    return Case(model, (x,), nn.functional.cross_entropy, (y,))


def vgg() -> Case:
    head = (nn.Flatten(), nn.Linear(64, 24), nn.ReLU(inplace=True), nn.Linear(24, 12))
    return images(nn.Sequential(VggBlock(3, 8), VggBlock(8, 16), *head))


def resnet() -> Case:
    stem = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    blocks = (nn.MaxPool2d(3, 2, 1), Bottleneck(8, 16, 1), Bottleneck(16, 16, 2))
    head = (nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(16, 12))
    return images(nn.Sequential(*stem, *blocks, *head))


def odd_channels() -> Case:
    """Channels, and groups of one channel, that no mesh divides."""
    first = (nn.Conv2d(3, 7, 3, padding=1, bias=False), nn.BatchNorm2d(7), nn.ReLU(inplace=True))
    separable = (nn.Conv2d(7, 7, 3, padding=1, groups=7), nn.Conv2d(7, 13, 1), nn.BatchNorm2d(13))
    head = (nn.MaxPool2d(2), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(13, 13))
    return images(nn.Sequential(*first, *separable, *head))


class Mixture(nn.Module):
    """What else convolutional networks are made of, and a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 3, padding="same", groups=8)
        self.groups = nn.GroupNorm(4, 8)
        self.up = nn.ConvTranspose2d(8, 12, 2, stride=2)
        self.norm = nn.BatchNorm2d(12, affine=False)
        self.rows = nn.Conv1d(12, 8, 3)
        self.last_norm = nn.BatchNorm1d(8, track_running_stats=False)
        self.register_buffer("average", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 8, h, w) -> (batch, 8)."""
        x = nn.functional.gelu(self.groups(self.depthwise(x)))
        x = self.norm(self.up(nn.functional.avg_pool2d(x, 2)))
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.square().mean((0, 2, 3)), alpha=0.1)
        x = nn.functional.leaky_relu_(x + self.average.view(-1, 1, 1))
        x = nn.functional.max_pool1d(self.rows(x.flatten(2)), 3)
        return self.last_norm(nn.functional.adaptive_avg_pool1d(x, 1)).flatten(1)


def mixture() -> Case:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(8, 8, *s, generator=generator) for s in ((4, 6), ()))
    return Case(Mixture(), (x,), nn.functional.mse_loss, (y,))


def fused(model: Fused, width: int = 32) -> Case:
    return Case(model, (torch.randn(8, 8, width),))


def recommender() -> Case:
    from tests.distributed.lookup_models import Recommender

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 4, generator=generator)
    tags = torch.randint(0, 16, (20,), generator=generator)
    offsets = torch.tensor([0, 3, 3, 8, 9, 13, 16, 18])
    items = torch.randint(0, 3, (8,), generator=generator)
    clicks = torch.rand(8, 4, generator=generator)
    loss = nn.functional.binary_cross_entropy_with_logits
    return Case(Recommender(), (x, tags, offsets, items), loss, (clicks,))


def experts() -> Case:
    from tests.distributed.lookup_models import Experts

    tokens = torch.randint(0, 12, (2, 4, 8), generator=torch.Generator().manual_seed(1))
    target = tokens[1].clone()
    target[0, :6] = -100
    return Case(Experts(), (tokens[0], target))


def sorted_experts() -> Case:
    from tests.distributed.lookup_models import SortedExperts

    tokens = torch.randint(0, 12, (2, 4, 8), generator=torch.Generator().manual_seed(1))
    return Case(SortedExperts(), (tokens[0], tokens[1]))


def routed_experts() -> Case:
    from tests.distributed.lookup_models import RoutedExperts

    tokens = torch.randint(0, 12, (2, 4, 8), generator=torch.Generator().manual_seed(1))
    return Case(RoutedExperts(), (tokens[0], tokens[1]))


def tables() -> Case:
    from tests.distributed.table_models import ROWS, Tables, rows_of

    return Case(Tables(), (rows_of(ROWS, 2),))


def texts() -> Case:
    from tests.distributed.row_models import Texts

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 12, (8, 6), generator=generator)
    return Case(Texts(), (tokens, torch.randint(0, 5, (8,), generator=generator)))


CASES: dict[str, Callable[[], Case]] = {
    "gpt": gpt,
    "gpt_tied": lambda: gpt(tie=True),
    "llama": llama,
    "odd_257": lambda: odd_sizes(257),
    "odd_257_tied": lambda: odd_sizes(257, tie=True),
    "odd_1009": lambda: odd_sizes(1009),
    "odd_1009_tied": lambda: odd_sizes(1009, tie=True),
    "odd_channels": odd_channels,
    "odd_fused": lambda: fused(odd_fused(), width=30),
    "mixed": mixed,
    "lstm": lambda: rnn("lstm"),
    "gru": lambda: rnn("gru"),
    "transformer": transformer,
    "mlp": mlp,
    "vgg": vgg,
    "resnet": resnet,
    "mixture": mixture,
    "fused": lambda: fused(split_and_gated()),
    "fused_otherwise": lambda: fused(other_ways()),
    "grouped": lambda: fused(grouped(), width=48),
    "recommender": recommender,
    "experts": experts,
    "sorted_experts": sorted_experts,
    "routed_experts": routed_experts,
    "tables": tables,
    "texts": texts,
}

# Those of several layers with one.
SHALLOW: dict[str, Callable[[], Case]] = {
    **CASES,
    "gpt": lambda: gpt(layers=1),
    "gpt_tied": lambda: gpt(tie=True, layers=1),
    "llama": lambda: llama(layers=1),
    "lstm": lambda: rnn("lstm", layers=1),
    "gru": lambda: rnn("gru", layers=1),
    "transformer": lambda: transformer(layers=1),
}


def make(
    name: str,
    dtype: torch.dtype,
    rows: int | None = None,
    cases: Mapping[str, Callable[[], Case]] = CASES,
) -> Case:
    """The case with parameters and floating inputs in ``dtype``, and so many rows in the
    batch; same on all ranks."""
    torch.manual_seed(0)
    case = cases[name]()
    batch = len(case.args[0])
    taken = torch.arange(rows or batch) % batch

    def cast(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        of_batch = (t[taken] if len(t) == batch else t for t in tensors)
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in of_batch)

    return Case(case.model.to(dtype), cast(case.args), case.loss_fn, cast(case.targets))


def text_batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of the text for the model of ``gpt``."""
    text = load_text()
    return [text.batch(step, 8, 8) for step in range(count)]
