"""Layers take weights that are transposed as they are, with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.frontend.passes import target_name
from tests.frontend.training import assert_bit_equal, train_captured, train_module

LINEAR, TRANSPOSED = "aten.linear.default", "tensoropt.linear_transposed.default"
TURNS = {
    "aten.t.default",
    "aten.transpose.int",
    "aten.permute.default",
    "aten.numpy_T.default",
    "aten.mT.default",
}
Use = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Weight(nn.Module):
    """A weight of ``shape`` that something is done with."""

    def __init__(self, use: Use, *shape: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(shape))
        self._use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._use(x, self.weight).square().mean()


def targets(captured: CapturedModel) -> list[str]:
    return [target_name(node) for node in captured.graph_module.graph.nodes]


USES: dict[str, tuple[Use, tuple[int, int], str]] = {
    "product": (lambda x, w: x @ w.t(), (5, 8), LINEAR),
    "product with T": (lambda x, w: x @ w.T, (5, 8), LINEAR),
    "product with mT": (lambda x, w: x @ w.mT, (5, 8), LINEAR),
    "rows": (lambda x, w: torch.mm(x.flatten(0, 1), w.transpose(-1, 0)), (5, 8), LINEAR),
    "permuted": (lambda x, w: linear(x, w.permute(1, 0)), (8, 5), TRANSPOSED),
    "layer": (lambda x, w: linear(x, w.t(), x[0, 0, :5]), (8, 5), TRANSPOSED),
    "cast": (lambda x, w: linear(x.double(), w.double().t()), (8, 5), TRANSPOSED),
    "cast afterwards": (lambda x, w: x.double() @ w.t().double(), (5, 8), LINEAR),
}


@pytest.mark.parametrize("name", USES)
def test_no_call_turns_the_weight(name: str) -> None:
    use, shape, target = USES[name]
    model, x = Weight(use, *shape), torch.randn(4, 6, 8)
    captured = capture(model, (x,))
    calls = targets(captured)
    assert target in calls and TURNS.isdisjoint(calls)
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))


OTHERS: dict[str, tuple[Use, tuple[int, ...]]] = {
    "itself transposed twice": (lambda x, w: x @ w.t().exp().t(), (8, 5)),
    "a batch of weights": (lambda x, w: x @ w.transpose(1, 2), (4, 5, 8)),
    "one row": (lambda x, w: x[0, 0] @ w.t(), (5, 8)),
    "of what is computed": (lambda x, w: linear(x, (w + 1).t()), (8, 5)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay(name: str) -> None:
    use, shape = OTHERS[name]
    model, x = Weight(use, *shape), torch.randn(4, 6, 8)
    captured = capture(model, (x,))
    assert not TURNS.isdisjoint(targets(captured))
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))


class OfConv1D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = Conv1D(16, 8), Conv1D(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu()).square().mean()


def test_layers_of_hugging_face_are_one_call_each() -> None:
    model, x = OfConv1D(), torch.randn(4, 6, 8)
    captured = capture(model, (x,))
    assert targets(captured).count(TRANSPOSED) == 2 and "aten.t.default" not in targets(captured)
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))


def test_a_transposed_weight_has_one_block_after_the_other() -> None:
    def halves(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        first, second = linear(x, weight.t()).chunk(2, dim=-1)
        return first * second

    captured = capture(Weight(halves, 8, 12), (torch.randn(4, 6, 8),))
    (blocks,) = captured.blocks.values()
    assert (blocks.dim, blocks.count) == (1, 2)
    assert "tensoropt.linear_blocks.default" in targets(captured)
