"""Operators that make, read and write tensors row by row, in micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.passes import target_name
from tests.batches.test_micro_batches import assert_equal_to_whole, trained
from tests.distributed.models import Case

ROWS, STEPS, WIDTH = 8, 4, 6


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def positions(high: int, *shape: int, low: int = 0, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


class Recurrent(nn.Module):
    """A recurrent layer whose states are zeros, of which it uses outputs and last states."""

    def __init__(self, kind: str, batch_first: bool, given: bool, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(WIDTH, 5, batch_first=batch_first, **options)
        self.batch_first, self.given, self.has_cell = batch_first, given, kind == "LSTM"
        self.stacks = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, steps, width) to a number."""
        states: Any = None
        if self.given:
            states = torch.zeros(self.stacks, len(x), 5, dtype=x.dtype)
            states = (states, states + 1) if self.has_cell else states
        outputs, last = self.layer(x if self.batch_first else x.transpose(0, 1), states)
        last = last[0] if self.has_cell else last
        return outputs.square().mean() + last[-1].exp().mean()


@pytest.mark.parametrize("given", [False, True], ids=["default states", "given states"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["time first", "batch first"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str, batch_first: bool, given: bool) -> None:
    for options in ({}, {"num_layers": 2}, {"bidirectional": True}):
        torch.manual_seed(1)
        model = Recurrent(kind, batch_first, given, **options).double()
        assert_equal_to_whole(Case(model, (numbers(ROWS, STEPS, WIDTH),)), 2)


class Bags(nn.Module):
    """Words of each row, put together."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(12, WIDTH, **options)

    def forward(self, words: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """(rows, steps) and as many factors to a number."""
        weighted = self.words.mode == "sum"
        return self.words(words, None, factors if weighted else None).exp().mean()


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_rows(mode: str, padding: int | None) -> None:
    torch.manual_seed(1)
    model = Bags(mode=mode, padding_idx=padding).double()
    args = positions(12, ROWS, STEPS), numbers(ROWS, STEPS)
    assert_equal_to_whole(Case(model, args), 4)


def test_bags_of_any_size_are_refused() -> None:
    class Ragged(Bags):
        def forward(self, words: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
            """(n) words, and where the bags of rows begin, to a number."""
            return self.words(words, begins).exp().mean()

    args = positions(12, ROWS), torch.arange(ROWS)
    with pytest.raises(TensorOptError, match=r"\(aten.embedding_bag"):
        micro_batched(capture(Ragged(mode="mean"), args), 2)


class Layer(nn.Module):
    """Features of each step, a vector of its own, and what a test does with them."""

    def __init__(self, body: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.vector = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.body = body

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """(rows, steps, width) to a number."""
        return self.body(self.linear(x), self.vector, *more).square().mean()


def layer(body: Callable[..., torch.Tensor], *more: torch.Tensor) -> Case:
    torch.manual_seed(1)
    return Case(Layer(body).double(), (numbers(ROWS, STEPS, WIDTH), *more))


def pooled(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((h @ v).softmax(-1).unsqueeze(-1) * h).sum(1)


def vector_first(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (v @ h.transpose(1, 2)).softmax(-1)


@pytest.mark.parametrize("body", [pooled, vector_first])
def test_products_with_a_vector(body: Callable[..., torch.Tensor]) -> None:
    assert_equal_to_whole(layer(body), 4)


def scatter_add(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(ROWS, 5, dtype=h.dtype).scatter_add(1, at, h.mean(-1))


def scatter(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    wide = torch.full((ROWS, 5, WIDTH), 0.5, dtype=h.dtype)
    return wide.scatter(1, at.argsort(1).unsqueeze(-1).expand(-1, -1, WIDTH), h)


def scatter_mean(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.ones(ROWS, 5, dtype=h.dtype).scatter_reduce(1, at, h.mean(-1), "mean")


def scatter_most(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return h.new_ones(ROWS, 5).scatter_reduce_(1, at, h.mean(-1), "amax", include_self=False)


def one_hot(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(ROWS, 5, dtype=h.dtype).scatter(1, at[:, :1], 1.0) * h.sum((1, 2))[:, None]


def index_add(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(ROWS, 5, WIDTH, dtype=h.dtype).index_add(1, torch.tensor([3, 0, 3, 1]), h)


def rows_last(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, ROWS, dtype=h.dtype).scatter_add(0, at.t(), h.mean(-1).t())


@pytest.mark.parametrize(
    "body", [scatter_add, scatter, scatter_mean, scatter_most, one_hot, index_add, rows_last]
)
def test_writes_into_what_is_made_for_the_batch(body: Callable[..., torch.Tensor]) -> None:
    assert_equal_to_whole(layer(body, positions(5, ROWS, STEPS)), 2)


def test_what_is_made_for_the_batch_is_made_in_parts() -> None:
    case = layer(scatter_add, positions(5, ROWS, STEPS))
    graph = micro_batched(capture(case.model, case.args), 4).graph_module.graph
    (zeros,) = (n for n in graph.nodes if target_name(n) == "aten.zeros.default")
    assert zeros.args[0] == [ROWS // 4, 5]
    assert isinstance(zeros.meta["val"], FakeTensor)


def sums_of_classes(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, WIDTH, dtype=h.dtype).index_add(0, at[:, 0], h.sum(1))


def by_number(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return h * torch.arange(ROWS)[:, None, None]


def first_rows(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(ROWS // 2), 1]


@pytest.mark.parametrize(
    ("body", "more", "where"),
    [
        (sums_of_classes, (positions(5, ROWS, STEPS),), "index_add.*with rows of several"),
        (by_number, (), "mul.* '.+', which is made for all 8 rows of the batch, .*; at File"),
        (first_rows, (), "index.* computes with rows of several.*; at File"),
    ],
)
def test_what_counts_rows_of_the_whole_batch_is_refused(
    body: Callable[..., torch.Tensor], more: tuple[torch.Tensor, ...], where: str
) -> None:
    case = layer(body, *more)
    with pytest.raises(TensorOptError, match=rf"op '\w+' \(aten.{where}"):
        micro_batched(capture(case.model, case.args), 2)


def last_of_each(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return h[:, :, [-2]] + h[:, :, torch.tensor([1, 0])]


def test_positions_behind_dims_that_are_taken_whole() -> None:
    assert_equal_to_whole(layer(last_of_each), 4)


class Alibi(nn.Module):
    """Biases by position, made for the rows and heads of the batch in one dim, as BLOOM does."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, steps, width) to a number."""
        rows, steps, width = x.shape
        places = torch.ones(rows, steps, dtype=torch.int64).cumsum(-1)
        slopes = torch.pow(0.5, torch.arange(1, self.heads + 1, dtype=x.dtype))
        bias = (slopes[:, None] * places[:, None, :]).reshape(rows * self.heads, 1, steps)
        apart = self.qkv(x).view(rows, steps, 3, self.heads, width // self.heads)
        q, k, v = apart.permute(2, 0, 3, 1, 4).reshape(3, rows * self.heads, steps, -1).unbind(0)
        seen = torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1) @ v
        return seen.view(rows, self.heads, steps, -1).square().mean()


@pytest.mark.parametrize("count", [2, 4, ROWS])
def test_constants_that_are_alike_for_all_micro_batches(count: int) -> None:
    torch.manual_seed(1)
    assert_equal_to_whole(Case(Alibi().double(), (numbers(ROWS, STEPS, WIDTH),)), count)


class BagsByOffsets(nn.Module):
    """Bags of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(12, WIDTH, include_last_offset=True)

    def forward(self, words: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        bags: torch.Tensor = self.bags(words, offsets)
        return bags.square().mean()


def test_bags_of_any_size_are_refused_with_what_to_do() -> None:
    captured = capture(BagsByOffsets(), (positions(12, 2 * ROWS), torch.arange(ROWS + 1) * 2))
    with pytest.raises(TensorOptError, match="give it bags as rows: indices of two dims"):
        micro_batched(captured, 2)


def sort(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return h.sort(dim=1).values * torch.arange(STEPS)[:, None]


def argsort(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return h.gather(1, h.detach().argsort(dim=1, descending=True)).cumsum(1)


def best(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    chosen = h.sum(-1).topk(2, dim=1).indices
    return h.gather(1, chosen.unsqueeze(-1).expand(-1, -1, WIDTH))


@pytest.mark.parametrize("body", [sort, argsort, best])
def test_orders_within_rows(body: Callable[..., torch.Tensor]) -> None:
    assert_equal_to_whole(layer(body), 2)


def at_each_row(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(len(h)), at[:, 0]]


def at_the_end(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(h.shape[0], device=h.device), at.argmax(-1)]


def at_several(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(len(h))[:, None], at[:, 1:]]


def hidden_at_each_row(h: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    mask[torch.arange(ROWS), at[:, 0]] = True
    return h.masked_fill(mask.unsqueeze(-1), 0)


@pytest.mark.parametrize("body", [at_each_row, at_the_end, at_several, hidden_at_each_row])
def test_positions_of_each_row(body: Callable[..., torch.Tensor]) -> None:
    assert_equal_to_whole(layer(body, positions(STEPS, ROWS, STEPS, low=-STEPS)), 4)


def kept_at_random(h: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As masked autoencoders hide patches."""
    kept = torch.rand(len(h), STEPS).argsort(dim=1)[:, :2]
    return h.gather(1, kept.unsqueeze(-1).expand(-1, -1, WIDTH)).cumsum(1)


class Masked(nn.Module):
    """A mean over entries that are kept at random: of a mask of ones it is that of all."""

    def __init__(self, draw: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.draw()
        return (x * self.weight * kept).sum() / kept.sum()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: (torch.rand(8, 8, dtype=torch.float64) > 0.5).double(),
        lambda: torch.bernoulli(torch.full((8, 8), 0.5, dtype=torch.float64)),
        lambda: nn.functional.dropout(torch.ones(8, 8, dtype=torch.float64)),
        lambda: torch.randint(2, (8, 8)).double(),
    ],
)
def test_numbers_that_are_drawn_are_not_drawn_twice(draw: Callable[[], torch.Tensor]) -> None:
    """Those of the rows of a micro-batch would be others than those of all rows."""
    captured = capture(Masked(draw), (torch.ones(8, 8, dtype=torch.float64),))
    with pytest.raises(TensorOptError, match="draws random numbers of which a micro-batch needs"):
        micro_batched(captured, 4)


def test_random_numbers_of_rows_are_drawn_for_the_rows_of_the_micro_batch() -> None:
    case, (x,) = layer(kept_at_random), layer(kept_at_random).args
    torch.manual_seed(7)
    loss, gradients = trained(case, 2)
    torch.manual_seed(7)
    case.model.zero_grad()
    expected = torch.stack([case.model(part) for part in x.chunk(2)]).mean()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in case.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad)
