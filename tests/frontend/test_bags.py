"""Bags that are rows of their indices are looked up as rows, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import target_name
from tests.frontend.training import assert_bit_equal, train_captured, train_module

ROWS = "tensoropt.embedding_bag_rows.default"


class Bags(nn.Module):
    def __init__(self, look_up: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.look_up = nn.Parameter(torch.randn(12, 4)), look_up

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """(rows, steps) to (rows, 4)."""
        return self.look_up(self.table, words).exp()


def words() -> torch.Tensor:
    return torch.randint(0, 12, (6, 5), generator=torch.Generator().manual_seed(0))


def captured_with(look_up: Callable[..., torch.Tensor]) -> set[str]:
    """The operators of the graph, which gives the bits of the module."""
    model, args = Bags(look_up), (words(),)
    captured = capture(model, args)
    assert_bit_equal(train_captured(model, captured, args), train_module(model, args))
    return {target_name(node) for node in captured.graph_module.graph.nodes}


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "max"},
        {"mode": "mean", "padding_idx": 3},
        {"mode": "max", "padding_idx": -1},
        {"mode": "sum", "per_sample_weights": torch.linspace(0, 1, 30).view(6, 5)},
    ],
    ids=str,
)
def test_two_dims_are_rows(options: dict[str, Any]) -> None:
    assert ROWS in captured_with(lambda table, x: F.embedding_bag(x, table, **options))


def test_offsets_that_are_rows_are_rows() -> None:
    def counted(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(x.flatten(), table, torch.arange(6) * 5)

    assert ROWS in captured_with(counted)


def test_offsets_that_end_with_the_last_row_are_rows() -> None:
    def counted(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(x.flatten(), table, torch.arange(7) * 5, include_last_offset=True)

    assert ROWS in captured_with(counted)


def by_frequency(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(x, table, scale_grad_by_freq=True)


def of_other_sizes(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(x.flatten(), table, torch.tensor([0, 5, 11, 15, 20, 25]))


def with_a_longer_last_one(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(x.flatten(), table, torch.arange(5) * 5)


def that_leave_some_out(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(x.flatten(), table, torch.arange(7) * 4, include_last_offset=True)


def other_outputs(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    found = torch.embedding_bag(table, x.flatten(), torch.arange(6) * 5, mode=1)
    return found[0] / found[2].unsqueeze(1)


@pytest.mark.parametrize(
    "look_up",
    [by_frequency, of_other_sizes, with_a_longer_last_one, that_leave_some_out, other_outputs],
)
def test_other_bags_stay(look_up: Callable[..., torch.Tensor]) -> None:
    assert ROWS not in captured_with(look_up)
