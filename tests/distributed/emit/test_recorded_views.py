"""Steps that are run again as two functions, of models whose tensors change their shape in place,
or that use several views of an input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tensoropt_torch import find_stages, find_strategy, parallelize
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.emit.test_recorded_views"
STEPS = 3


class Token(nn.Module):
    """A learned vector through a layer, in front of the tokens: PyTorch's product takes away a dim
    in place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.vector, self.layer = nn.Parameter(torch.randn(8)), nn.Linear(8, 8, bias=False)
        self.out, self.kind = nn.Linear(8, 1), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, 8) to a number."""
        token = (
            self.vector @ self.layer.weight if self.kind == "product" else self.layer(self.vector)
        )
        if self.kind == "in place":
            token = (token * 2).unsqueeze_(0).squeeze(0)
        return self.out(torch.cat([token[None].cumsum(0), x])).cos().mean()


class Recurrent(nn.Module):
    """A recurrent layer with a learned first state, which PyTorch takes apart by layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.layer, self.state = nn.RNN(8, 8, batch_first=True), nn.Parameter(torch.randn(1, 1, 8))
        self.out = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, steps, 6) to (rows, 5)."""
        found, _ = self.layer(self.first(x), self.state.expand(-1, len(x), -1))
        return self.out(found.mean(1))


def losses(kind: str) -> list[tuple[float, float]]:
    """Of a module under a plan, and of the model as it is."""
    torch.manual_seed(0)
    one, x = Token(kind).double(), torch.randn(16, 8, dtype=torch.float64)
    parallel = parallelize(copy.deepcopy(one), find_strategy(one, (x,), measure=False), (x,))
    return _trained(parallel, one, one, x)


def losses_in_stages(_: object) -> list[tuple[float, float]]:
    torch.manual_seed(0)
    one, x = Recurrent().double(), torch.randn(8, 5, 6, dtype=torch.float64)
    y = torch.randint(5, (8,))
    given: dict[str, Any] = {"loss_fn": F.cross_entropy, "targets": (y,)}
    plan = find_stages(one, (x,), stages=["layer"], micro_batches=4, measure=False, **given)
    parallel = parallelize(copy.deepcopy(one), plan, (x,), **given)
    return _trained(parallel, one, lambda x, y: F.cross_entropy(one(x), y), x, y)


def _trained(
    parallel: nn.Module, one: nn.Module, loss_of: Callable[..., torch.Tensor], *batch: torch.Tensor
) -> list[tuple[float, float]]:
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (parallel, one)]
    found = []
    for _ in range(STEPS):
        pair = parallel(*batch), loss_of(*batch)
        for loss, each in zip(pair, optimizers, strict=True):
            each.zero_grad()
            loss.backward()
            each.step()
        found.append((float(pair[0]), float(pair[1])))
    return found


@pytest.mark.parametrize("kind", ["product", "layer", "in place"])
def test_dims_that_are_taken_away_in_place(kind: str) -> None:
    for got, expected in run_ranks(1, f"{HERE}:losses", kind, 60)[0]:
        assert got == pytest.approx(expected, rel=1e-10)


def test_several_views_of_an_input_in_a_stage() -> None:
    for found in run_ranks(2, f"{HERE}:losses_in_stages", None, 90):
        for got, expected in found:
            assert got == pytest.approx(expected, rel=1e-10)
