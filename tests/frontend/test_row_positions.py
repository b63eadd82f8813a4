"""Elements at a position of each row are gathered and scattered, with the same numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import fx

from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import target_name
from tests.frontend.training import Layer, assert_close, train_captured, train_module

SEEDS = range(60)


def names(graph: fx.Graph) -> set[str]:
    return {target_name(node) for node in graph.nodes}


@dataclass(frozen=True)
class Indices:
    """Dims of which all rows are taken, along dims of positions in any order, one dim with
    positions, and whole ones, in any order.

    Attributes:
        rows: the shapes of the first, by dim.
        dim: the dim with positions.
        index: the positions.
    """

    rank: int
    rows: dict[int, list[int]]
    dim: int
    index: torch.Tensor

    @staticmethod
    def of(choice: random.Random, shape: list[int]) -> Indices:
        order = choice.sample(range(len(shape)), len(shape))
        dim, *along = order[: choice.randint(2, len(shape))]
        places: list[int | None] = [*along]
        if choice.random() < 0.5:  # positions besides rows
            places.insert(choice.randint(0, len(places)), None)
        sizes = [choice.randint(2, 3) if place is None else shape[place] for place in places]
        rows = {d: [shape[d], *[1] * (len(sizes) - 1 - places.index(d))] for d in along}
        index = torch.randint(-shape[dim], shape[dim], sizes)
        if choice.random() < 0.3:  # the same for all rows of a dim
            index = index.narrow(choice.randrange(len(sizes)), 0, 1)
        return Indices(len(shape), rows, dim, index)

    def given(self, index: torch.Tensor) -> list[torch.Tensor | None]:
        """With these positions; None for what is whole."""
        found: list[torch.Tensor | None] = [None] * self.rank
        found[self.dim] = index
        for dim, shape in self.rows.items():
            found[dim] = torch.arange(shape[0]).view(shape)
        return found


class Indexed(Layer):
    """Reads at indices, or writes there, or adds."""

    def __init__(self, shape: list[int], indices: Indices, how: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(shape[-1], shape[-1])
        self.indices, self.how = indices, how

    def forward(self, x: torch.Tensor, values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """A tensor to what is read of it, or to itself with what is written."""
        given, hidden = self.indices.given(index), self.linear(x)
        if self.how == "read":
            return torch.ops.aten.index(hidden, given).exp()
        adds = self.how == "add"
        return torch.ops.aten.index_put(hidden, given, values.exp(), adds).exp()


@pytest.mark.parametrize("how", ["read", "write", "add"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_indices(seed: int, how: str) -> None:
    choice = random.Random(seed)
    torch.manual_seed(seed)
    shape = [choice.randint(2, 4) for _ in range(choice.randint(2, 4))]
    indices = Indices.of(choice, shape)
    given = indices.given(indices.index)
    places = torch.ops.aten.index(torch.arange(math.prod(shape)).view(shape), given)
    if how == "write" and places.unique().numel() < places.numel():
        pytest.skip("what is written twice at one place could be either")
    values = torch.randn(places.shape if choice.random() < 0.5 else places.shape[-1:])
    model, args = Indexed(shape, indices, how), (torch.randn(shape), values, indices.index)
    captured = capture(model, args)
    graph = names(captured.graph_module.graph)
    assert not graph & {"aten.index.Tensor", "aten.index_put.default"}, (seed, shape, given)
    assert_close(train_captured(model, captured, args), train_module(model, args))


def a_part_of_the_rows(self: Layer, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return self.linear(x)[torch.arange(len(x) - 1), at[1:]]


def other_order(self: Layer, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return self.linear(x)[torch.arange(len(x)).flip(0), at]


def several_positions(self: Layer, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    wide = self.linear(x).reshape(4, 2, 2)
    return wide[torch.arange(4), at % 2, at // 2]


def no_rows(self: Layer, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return self.linear(x)[at, at]


def a_mask(self: Layer, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    hidden = self.linear(x).clone()
    hidden[at > 1] = 0.0
    return hidden


@pytest.mark.parametrize(
    "body", [a_part_of_the_rows, other_order, several_positions, no_rows, a_mask]
)
def test_other_indices_stay(body: Callable[..., torch.Tensor]) -> None:
    model, args = Layer(body), (torch.randn(4, 4), torch.tensor([3, 0, 2, 0]))
    captured = capture(model, args)
    assert names(captured.graph_module.graph) & {"aten.index.Tensor", "aten.index_put.default"}
    assert_close(train_captured(model, captured, args), train_module(model, args))


def at_rows(self: Layer, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return self.linear(x)[torch.arange(len(x)), at]


@pytest.mark.parametrize("wrong", [4, -5])
def test_positions_that_are_none_are_errors(wrong: int) -> None:
    model, x, at = Layer(at_rows), torch.randn(4, 4), torch.tensor([3, 0, 2, 0])
    captured = capture(model, (x, at))
    at[1] = wrong
    with pytest.raises(RuntimeError, match="out of bounds"):
        train_captured(model, captured, (x, at))


def test_positions_of_32_bits_are_read() -> None:
    model, args = Layer(at_rows), (torch.randn(4, 4), torch.tensor([-1, 0, 2, 0]).int())
    captured = capture(model, args)
    assert "aten.gather.default" in names(captured.graph_module.graph)
    assert_close(train_captured(model, captured, args), train_module(model, args))
