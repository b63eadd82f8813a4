"""Dims that are merged for a while can be split, with the same bits."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.space.search_space import unpriced_space
from tests.distributed.fused_models import Multihead
from tests.frontend.training import assert_bit_equal, train_captured, train_module


class Loss(nn.Module):
    """The mean square of what a layer makes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out.square().mean()


def splits(model: nn.Module, x: torch.Tensor, operator: str) -> list[set[str]]:
    """What each call of an operator may be split by, on two devices."""
    captured = capture(model, (x,))
    rows = unpriced_space(captured.lowering, [2]).nodes()
    return [set(row.configs) for row in rows if operator in row.target]


def test_heads_and_rows_of_pytorchs_attention_can_be_split() -> None:
    model, x = Multihead(), torch.randn(8, 6, 32)
    (attention,) = splits(model, x, "scaled_dot_product_attention")
    assert {"b0", "h"} <= attention
    projections = splits(model, x, "linear")
    assert len(projections) == 2
    assert all({"b0", "b1", "n", "k"} <= configs for configs in projections)


def test_rows_of_attention_that_gives_its_weights_can_be_split() -> None:
    model, x = Multihead(weighed=True), torch.randn(8, 6, 32)
    projections = splits(model, x, "linear")
    assert len(projections) == 2
    assert all({"b0", "b1", "n", "k"} <= configs for configs in projections)
    assert micro_batched(capture(Loss(model), (x,)), 4).micro_batches == 4


@pytest.mark.parametrize("weighed", [True, False])
def test_attention_is_trained_with_the_same_bits(weighed: bool) -> None:
    torch.manual_seed(0)
    model, x = Loss(Multihead(weighed=weighed)), torch.randn(4, 6, 32)
    captured = capture(model, (x,))
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_layer_is_trained_with_the_same_bits(batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=batch_first)
    model, x = Loss(layer), torch.randn(4, 6, 32)
    captured = capture(model, (x,))
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))


class Chain(nn.Module):
    """Reshapes, permutations and a layer, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = random.Random(seed)
        self.sizes = [generator.choice([1, 2, 3, 4]) for _ in range(4)]
        self.merged = sorted(generator.sample(range(1, 4), generator.randint(0, 2)))
        self.order = generator.sample(range(4 - len(self.merged)), 4 - len(self.merged))
        self.takes_apart = generator.random() < 0.7
        self.rows = generator.randint(1, 3)
        self.weight = nn.Parameter(torch.randn(6, math.prod(self.sizes[self.rows :])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups: list[list[int]] = []
        for dim, size in enumerate(self.sizes):
            if dim in self.merged:
                groups[-1].append(size)
            else:
                groups.append([size])
        y = x.reshape([math.prod(group) for group in groups]).permute(self.order)
        apart = [size for place in self.order for size in groups[place]]
        y = y.reshape(apart if self.takes_apart else [-1, apart[-1]])
        lead = self.sizes[: self.rows]
        z = nn.functional.linear(x.reshape(math.prod(lead), -1), self.weight)
        z = z.reshape([*lead, 2, 3])
        return y.cos().sum() + z.sin().sum()


@pytest.mark.parametrize("seed", range(60))
def test_random_chains_keep_their_bits(seed: int) -> None:
    torch.manual_seed(seed)
    model = Chain(seed)
    x = torch.randn(model.sizes)
    captured = capture(model, (x,))
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))
