"""What the model computes in place, a rank computes in place where nothing else sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import tensoropt_torch
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.runtime.recomputation import recomputed

Body = Callable[[nn.Linear, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 8) -> scalar."""
        return self.body(self.layer, x).square().mean()


def calls(body: Body, recompute: bool = False) -> list[fx.Node]:
    """Those of one rank of two that split the batch."""
    frontier = tensoropt_torch.find_frontier(
        Model(body),
        (torch.randn(4, 8),),
        cluster="cpu",
        num_devices=2,
        recompute=recompute,
        pin={"layer": "b0"},
    )
    plan = frontier.smallest.plan
    assert plan.captured is not None
    part = RankPart(plan, plan.captured, 0)
    return list(part.emitter(torch.device("cpu"), str).emit().graph.nodes)


def targets(body: Body) -> list[str]:
    """What they call."""
    return [str(node.target) for node in calls(body)]


def after_a_use(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    doubled = y + y
    return y.relu_() + doubled


IN_PLACE: dict[str, Body] = {
    "relu": lambda layer, x: layer(x).relu_(),
    "residual": lambda layer, x: layer(x).add_(x).relu_(),
    "by a number": lambda layer, x: layer(x).mul_(2),
}
RANDOM: Body = lambda layer, x: F.dropout(layer(x), 0.5, inplace=True)  # noqa: E731
NOT: dict[str, Body] = {
    "a view": lambda layer, x: layer(x).view(-1, 4).relu_(),
    "in another way": lambda layer, x: layer(x).relu(),
    "after a use": after_a_use,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_calls_in_place_stay_in_place(name: str) -> None:
    found = targets(IN_PLACE[name])
    own = [target for target in found if target.startswith("aten.") and "_." in target]
    assert own, found


@pytest.mark.parametrize("name", NOT)
def test_what_is_seen_elsewhere_is_not_overwritten(name: str) -> None:
    found = targets(NOT[name])
    assert any(target.startswith("aten.relu.") for target in found), found
    assert not any("_." in target for target in found if target.startswith("aten.")), found


def test_what_draws_is_not_overwritten() -> None:
    """It is called by what gives it its seed."""
    found = targets(RANDOM)
    assert not any("dropout_" in target for target in found), found


def test_what_runs_again_is_not_overwritten() -> None:
    def deep(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = layer(x).add_(x).relu_()
        return x

    again = [str(node.args[0]) for node in calls(deep, recompute=True) if node.target is recomputed]
    assert any(target.startswith("aten.relu.") for target in again), again
    assert not any("_." in target for target in again), again
