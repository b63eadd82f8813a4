"""Decisions by random numbers of PyTorch: refused, but where the number does not count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.coverage.bits import differing_bits
from benchmarks.coverage.zoo import Example
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture

Skips = Callable[[float], bool | torch.Tensor]
SHAPE = (6, 4)


class Dropping(nn.Module):
    """Layers with dropout, some of them left out as ``skips(p)`` tells."""

    def __init__(self, skips: Skips, p: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.skips, self.p = skips, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            skips = self.skips(self.p)
            if not skips:
                x = F.dropout(layer(x), 0.5)
        return x.square().sum()


def below(p: float) -> torch.Tensor:
    return torch.rand(()) < p


def of_one_element(p: float) -> torch.Tensor:
    return torch.rand(1)[0] <= p - (p == 0)


def from_the_right(p: float) -> torch.Tensor:
    return p > torch.rand([])


def inverted(p: float) -> torch.Tensor:
    return ~(torch.rand(()) >= p)


def uniform(p: float) -> torch.Tensor:
    return torch.empty(()).uniform_() < p


def moved(p: float) -> torch.Tensor:
    return torch.rand(()) + 0.5 < p + 0.5


def drawn(p: float) -> torch.Tensor:
    return torch.bernoulli(torch.tensor(p)) > 0


def overwritten(p: float) -> torch.Tensor:
    skips = torch.rand(1) < p
    skips[0] = True
    return skips


def overwritten_in_a_view(p: float) -> torch.Tensor:
    skips = torch.rand(1) < p
    skips.view(1, 1).fill_(True)
    return skips


KNOWN: Sequence[Skips] = (below, of_one_element, from_the_right, inverted)
UNKNOWN: Sequence[Skips] = (uniform, moved, drawn, overwritten, overwritten_in_a_view)


@pytest.mark.parametrize("skips", KNOWN)
@pytest.mark.parametrize("p", [0.0, 0])
def test_nothing_is_left_out_and_later_numbers_are_the_same(skips: Skips, p: float) -> None:
    torch.manual_seed(0)
    example = Example(Dropping(skips, p), (torch.randn(SHAPE),))
    assert differing_bits(example) == []


def test_a_number_above_0_counts_as_that() -> None:
    """As adapters of ``peft`` ask for it: 0 itself is drawn once in 16 million times."""

    def above(p: float) -> torch.Tensor:
        return ~(torch.rand(1) > p)

    torch.manual_seed(0)
    assert differing_bits(Example(Dropping(above, 0.0), (torch.randn(SHAPE),))) == []
    with pytest.raises(TensorOptError, match="decides with a random number"):
        capture(Dropping(above, 1e-9), (torch.randn(SHAPE),))


@pytest.mark.parametrize("skips", KNOWN)
def test_all_is_left_out(skips: Skips) -> None:
    captured = capture(Dropping(skips, 1.0), (torch.randn(SHAPE, requires_grad=True),))
    targets = [str(node.target) for node in captured.graph_module.graph.nodes]
    assert "aten.linear.default" not in targets


@pytest.mark.parametrize("p", [0.1, 1e-50, 1 - 1e-12])
@pytest.mark.parametrize("skips", [*KNOWN, *UNKNOWN])
def test_a_decision_is_refused_with_its_line(skips: Skips, p: float) -> None:
    lines, first = inspect.getsourcelines(Dropping)
    place = next(i for i, line in enumerate(lines) if "if not skips" in line)
    with pytest.raises(TensorOptError, match="Dropping decides with a random number") as error:
        capture(Dropping(skips, p), (torch.randn(SHAPE),))
    assert f"(at {__file__}:{first + place}: if not skips:)" in str(error.value)
    assert "config.layerdrop = 0" in str(error.value)


@pytest.mark.parametrize("skips", UNKNOWN)
def test_what_is_not_followed_is_refused_at_0_too(skips: Skips) -> None:
    with pytest.raises(TensorOptError, match="decides with a random number"):
        capture(Dropping(skips, 0.0), (torch.randn(SHAPE),))


def test_a_choice_by_torch_where_stays() -> None:
    class Choosing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(torch.rand(()) < 0.5, super().forward(x), x).square().sum()

    torch.manual_seed(0)
    assert differing_bits(Example(Choosing(4, 4), (torch.randn(SHAPE),))) == []
