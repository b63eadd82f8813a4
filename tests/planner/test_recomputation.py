"""Frontiers with recomputation hold those without, and go on to less memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tensoropt_torch import _C, register_rule, unregister_rule
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.report.tables import plan_summary
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.description import describe
from tensoropt_torch.telling.details import details_of
from tests.distributed.models import make
from tests.rules.custom_ops import SCALED_ADD, scaled_add

EPSILON = 1e-2


def task(model: str, recompute: bool) -> PlanningTask:
    case = make(model, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    search = SearchSettings(epsilon=EPSILON)
    return PlanningTask(captured, load_cluster("h100-8"), recompute=recompute, search=search)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("model", ["gpt", "llama", "transformer", "vgg", "lstm", "mixture"])
def test_every_point_without_is_matched(model: str, num_devices: int) -> None:
    with_it = task(model, True)
    ours = find_frontier(with_it, num_devices)
    plain = find_frontier(replace(with_it, recompute=False), num_devices)
    assert ours.guarantee.exact
    for point in plain:
        assert any(
            own.memory_bytes <= point.memory_bytes * (1 + EPSILON)
            and own.time_s <= point.time_s * (1 + EPSILON)
            for own in ours
        )
    assert ours.smallest.memory_bytes < plain.smallest.memory_bytes
    assert ours.fastest.time_s == pytest.approx(plain.fastest.time_s)


def test_at_most_forward_is_added_to_a_step() -> None:
    """On one device, where nothing is resharded."""
    frontier = find_frontier(task("gpt", True), 1)
    for point in frontier:
        details = details_of(point.plan)
        again = details.time.get("operators again in backward", 0.0)
        assert sum(details.time.values()) == pytest.approx(point.time_s)
        assert again < details.time["operators"] / 2
        assert (again > 0) == (point is not frontier.fastest)


def test_plans_say_how_much_they_recompute() -> None:
    frontier = find_frontier(task("gpt", True), 2)
    counts = [describe(point.plan).num_recomputed for point in frontier]
    assert counts[0] > 0
    assert f"{counts[0]} operators run again in backward" in plan_summary(
        describe(frontier.smallest.plan)
    )
    plain = find_frontier(task("gpt", False), 2).smallest.plan
    assert "again" not in plan_summary(describe(plain))


def test_plans_that_recompute_are_read_again() -> None:
    plan = find_frontier(task("mlp", True), 2).smallest.plan
    loaded = Plan.from_json(plan.to_json())
    assert loaded == plan
    assert loaded.settings.recompute


@pytest.mark.parametrize("repeatable", [True, False])
def test_operators_of_users_run_again_if_they_may(repeatable: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
            self.scale = nn.Parameter(torch.ones(32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = scaled_add(self.up(x), self.up(x).tanh(), self.scale)
            return self.down(hidden).square().mean()

    register_rule(scaled_add, **SCALED_ADD, repeatable=repeatable)
    try:
        captured = capture(Model(), (torch.ones(8, 16),))
    finally:
        unregister_rule(scaled_add)
    settings = PlanningTask(captured, load_cluster("cpu"), recompute=True).settings(2)
    rows = make_space(captured, settings).nodes()
    (row,) = (row for row in rows if "scaled_add" in row.target)
    assert (_C.Saved.REMADE in row.saved) == repeatable


@pytest.mark.parametrize("model", ["resnet", "vgg"])
def test_batch_normalisation_never_runs_again(model: str) -> None:
    with_it = task(model, True)
    rows = make_space(with_it.captured, with_it.settings(2)).nodes()
    again = {row.target: _C.Saved.REMADE in row.saved for row in rows}
    assert not any(may for target, may in again.items() if "batch_norm" in target)
    assert any(again.values())


def test_baselines_recompute_as_well() -> None:
    with_it = task("gpt", True)
    for ours, plain in zip(
        find_baselines(with_it, 4, ("data parallel", "ZeRO-3")),
        find_baselines(replace(with_it, recompute=False), 4, ("data parallel", "ZeRO-3")),
        strict=True,
    ):
        assert ours.points[0][0] < plain.points[0][0]
