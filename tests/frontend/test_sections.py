"""Layers whose outputs are cut into sections make these, with the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import target_name
from tests.distributed.fused_models import (
    GroupedAttention,
    grouped_by_slice,
    grouped_by_split,
)
from tests.frontend.training import assert_bit_equal, train_captured, train_module

Parts = Callable[[torch.Tensor], list[torch.Tensor]]


class Cut(nn.Module):
    """A linear layer, and what is made of its outputs."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 12)
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.square().sum() for part in self.parts(self.layer(x))])


MADE: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "slices of heads": (lambda: GroupedAttention(grouped_by_slice), [48, 24, 24]),
    "split into heads": (lambda: GroupedAttention(grouped_by_split, bias=False), [48, 24, 24]),
    "two": (lambda: Cut(lambda y: [y[..., :8], y[..., 8:]]), [8, 4]),
    "in any order": (lambda: Cut(lambda y: [y[..., 8:], y[..., :6], y[..., 6:8]]), [6, 2, 4]),
    "slices and again": (lambda: Cut(lambda y: [*y[..., :8].chunk(2, -1), y[..., 8:]]), [8, 4]),
}


def sections_of(model: nn.Module, x: torch.Tensor) -> list[list[int]]:
    """The sizes of each call; its numbers are those of the module."""
    captured = capture(model, (x,))
    assert_bit_equal(train_captured(model, captured, (x,)), train_module(model, (x,)))
    return [
        list(node.args[4])
        for node in captured.graph_module.graph.nodes
        if target_name(node) == "tensoropt.linear_sections.default"
    ]


@pytest.mark.parametrize("name", MADE)
def test_sections_are_made_with_the_same_bits(name: str) -> None:
    torch.manual_seed(0)
    make, sizes = MADE[name]
    model = make()
    x = torch.randn(2, 8, 6 if isinstance(model, Cut) else 48)
    assert sections_of(model, x) == [sizes]


LEFT: dict[str, Parts] = {
    "nothing in common": lambda y: [y[..., :7], y[..., 7:]],
    "rows without use": lambda y: [y[..., :4], y[..., 6:]],
    "rows of two": lambda y: [y[..., :8], y[..., 4:]],
    "every second": lambda y: [y[..., ::2], y[..., 1::2]],
    "rows of the batch": lambda y: [y[:, :4], y[:, 4:]],
    "all of it as well": lambda y: [y[..., :8], y[..., 8:], y],
    "one": lambda y: [y[..., :8]],
}


@pytest.mark.parametrize("name", LEFT)
def test_other_layers_stay_as_they_are(name: str) -> None:
    torch.manual_seed(0)
    assert sections_of(Cut(LEFT[name]), torch.randn(2, 8, 6)) == []
