"""Random numbers that a forward pass draws otherwise than by dropout: the graph draws the very
numbers of the module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tests.frontend.training import Layer, assert_bit_equal, train_captured, train_module

Noise = Callable[[torch.Tensor], torch.Tensor]
HELD = torch.Generator().manual_seed(5)


def own() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def between_seeds(h: torch.Tensor) -> torch.Tensor:
    generator = own()
    first = torch.rand(h.shape, generator=generator)
    generator.manual_seed(4)
    return h + first + torch.rand(h.shape, generator=generator) + torch.rand(4, generator=own())


def without_grad(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        noise = torch.empty_like(h).normal_()
    return h + noise


def through_a_view(h: torch.Tensor) -> torch.Tensor:
    noise = torch.zeros_like(h)
    noise[:, 0].normal_()
    return h + noise


NOISES: dict[str, Noise] = {
    "bernoulli_": lambda h: h * h.new_empty(4, 1).bernoulli_(0.7).div_(0.7),
    "bernoulli_ of a half": lambda h: h * torch.empty_like(h).bernoulli_(),
    "bernoulli_ of a tensor": lambda h: h * torch.empty_like(h).bernoulli_(h.sigmoid()),
    "normal_": lambda h: h + torch.empty_like(h).normal_(1, 2),
    "uniform_": lambda h: h + torch.zeros_like(h).uniform_(-1, 1),
    "exponential_": lambda h: h + torch.empty_like(h).exponential_(2.0),
    "geometric_": lambda h: h * torch.empty_like(h).geometric_(0.3),
    "cauchy_": lambda h: h * torch.empty_like(h).cauchy_(),
    "log_normal_": lambda h: h * torch.empty_like(h).log_normal_(),
    "random_": lambda h: h * torch.zeros(4, 4, dtype=torch.int8).random_(),
    "random_ to": lambda h: h * torch.empty_like(h).random_(3),
    "random_ from to": lambda h: h * torch.empty_like(h).random_(-2, 5),
    "a view": through_a_view,
    "no_grad": without_grad,
    "of another shape": lambda h: h + torch.empty(16).normal_().view(4, 4),
    "distributions": lambda h: torch.distributions.Normal(h, 1.0).rsample(),
    "beta": lambda h: h * torch.distributions.Beta(0.4, 0.4).sample(),
    "gumbel": lambda h: F.gumbel_softmax(h, hard=True) * h,
    "own generator": lambda h: h + torch.randn(h.shape, generator=own()),
    "own generator, changed": lambda h: h + torch.randn(h.shape, generator=own()).mul_(2),
    "own generator, fill": lambda h: h + torch.empty_like(h).normal_(generator=own()),
    "own generator, random_": lambda h: h + torch.empty_like(h).random_(2, 9, generator=own()),
    "own generator, order": lambda h: h[torch.randperm(4, generator=own())],
    "own generator, seeded again": between_seeds,
}


def layer(noise: Noise) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """(4, 4) features with noise on them."""
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    return Layer(lambda self, x: noise(self.linear(x))), (x,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NOISES)
def test_numbers_are_those_of_the_module(name: str) -> None:
    module, args = layer(NOISES[name])
    captured = capture(module, args)
    expected = train_module(module, args)
    for _ in range(2):  # a generator that went on would draw others the second time
        assert_bit_equal(train_captured(module, captured, args), expected)


def test_the_class_of_generators_is_put_back() -> None:
    before = torch.Generator
    module, args = layer(lambda h: h + torch.rand(4, 4, generator=own()))
    capture(module, args)
    assert torch.Generator is before
    assert type(own()) is before


def seeded_otherwise(h: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator()
    generator.seed()
    return h + torch.rand(4, 4, generator=generator)


REFUSED: dict[str, tuple[Noise, tuple[str, ...]]] = {
    "held": (
        lambda h: h + torch.rand(4, 4, generator=HELD),
        ("aten.rand.generator", "does not make itself", "default generator"),
    ),
    "another seed": (seeded_otherwise, ("Generator.seed()", "manual_seed")),
    "of values": (
        lambda h: h * torch.bernoulli(h.sigmoid(), generator=own()),
        ("'bernoulli'", "depend on values", "draw without"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_generators_that_go_on_are_refused(name: str) -> None:
    noise, words = REFUSED[name]
    with pytest.raises(TensorOptError) as error:
        capture(*layer(noise))
    for word in words:
        assert word in str(error.value)


class Table(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4, **options)  # type: ignore[arg-type]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).square().sum()


def test_sparse_gradients_become_dense_with_the_same_values() -> None:
    table, args = Table(sparse=True), (torch.tensor([1, 4, 4]),)
    captured = capture(table, args)
    expected = train_module(table, args)
    got = train_captured(table, captured, args)
    assert not got[1]["table.weight"].is_sparse
    assert torch.equal(got[1]["table.weight"], expected[1]["table.weight"].to_dense())


def test_a_table_that_renormalises_itself_is_refused() -> None:
    with pytest.raises(
        TensorOptError, match=r"max_norm=0.5 .* leave max_norm out, and before each"
    ):
        capture(Table(max_norm=0.5), (torch.tensor([1, 4, 4]),))
