"""Costs that are scaled to what steps took."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from tensoropt_torch import _C, load_cluster
from tensoropt_torch.config.cluster import Runtime, Update
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.fits import Scales
from tensoropt_torch.measure.runs.validation import ValidatedStrategy
from tensoropt_torch.measure.scaling import as_it_took, rescaled, scaled
from tensoropt_torch.planner import picks
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

DEVICES = 4
RUNTIME = Runtime(3e-4, 1e-4, (Update(2.0, 1e-4, 1e-9),), "made up")


def row(
    seed: int, predicted: tuple[float, float], measured: tuple[float, float], collectives: int = 0
) -> ValidatedStrategy:
    """Of (computing, network) in s."""
    times = sum(predicted), sum(measured), predicted[1], measured[1]
    return ValidatedStrategy(seed, *times, 1.0, 1.0, 1.0, collectives=collectives)


@pytest.mark.parametrize("seed", range(5))
def test_a_run_is_predicted_again_with_scales(seed: int) -> None:
    generator = random.Random(seed)
    scales = Scales(generator.uniform(0.5, 3), generator.uniform(0.5, 3), 0.01)
    given = row(seed, (1.0, 0.5), (2.0, 1.0), 7)
    again = rescaled(given, scales)
    assert again.network_s == pytest.approx(0.5 * scales.network + 7 * 0.01)
    assert again.step_s == pytest.approx(scales.compute + again.network_s)
    assert replace(again, step_s=given.step_s, network_s=given.network_s) == given


def space_of(task: PlanningTask) -> _C.SearchSpace:
    return make_space(task.captured, task.settings(DEVICES))


@pytest.fixture(scope="module")
def task() -> PlanningTask:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
    x, y = torch.randn(16, 32), torch.randn(16, 8)
    captured = capture(model, (x,), loss_fn=nn.functional.mse_loss, targets=(y,))
    cluster = load_cluster("cpu")
    device = replace(cluster.device, runtime=RUNTIME)
    return PlanningTask(captured, replace(cluster, device=device))


def with_measurements(task: PlanningTask) -> PlanningTask:
    """Curves for some collectives and one measured operator."""
    curves = tuple(
        (name, axes, ((1024.0, 1e-4), (1 << 20, 1e-2)))
        for name in ("all_reduce", "all_gather")
        for axes in (1, 3)
    )
    space = space_of(task)
    estimates = space.estimates(space.random_strategy(0))
    calls = {r.key: r.family for r in estimates if "linear" in r.family}
    work = ("float32", 1e6, 2e6, 1e4, 1.0, True, False)
    operators = tuple((key, family, work, 1e-3, 2e-3) for key, family in calls.items())
    return replace(task, measured=curves, operators=operators, measured_on=DEVICES)


def test_seconds_of_each_collective_are_added_to_the_network(task: PlanningTask) -> None:
    task = with_measurements(task)
    before, after = space_of(task), space_of(scaled(task, Scales(collective_s=1e-6)))
    later = space_of(task.with_runtime(collective_s=RUNTIME.collective_s + 1e-6))
    added = []
    for seed in range(20):
        strategy = before.random_strategy(seed)
        added.append(after.network_time(strategy) - before.network_time(strategy))
        assert after.network_time(strategy) == pytest.approx(later.network_time(strategy))
        assert after.compute_time(strategy) == before.compute_time(strategy)
    assert min(added) >= 0
    assert max(added) > 1e-6  # more than one of them


@pytest.mark.parametrize("measured", [False, True])
def test_equal_scales_multiply_the_time_of_every_strategy(
    task: PlanningTask, measured: bool
) -> None:
    task = with_measurements(task) if measured else task
    before, after = space_of(task), space_of(scaled(task, Scales(2.0, 2.0)))
    for seed in range(20):
        strategy = before.random_strategy(seed)
        assert after.compute_time(strategy) == pytest.approx(2 * before.compute_time(strategy))
        assert after.network_time(strategy) == pytest.approx(2 * before.network_time(strategy))


def test_computing_and_the_network_are_scaled_apart(task: PlanningTask) -> None:
    task = with_measurements(task)
    before, after = space_of(task), space_of(scaled(task, Scales(3.0, 0.5)))
    for seed in range(20):
        strategy = before.random_strategy(seed)
        assert after.compute_time(strategy) == pytest.approx(3 * before.compute_time(strategy))
        network_s = before.network_time(strategy)
        # Reshards copy, which is computing.
        assert 0.5 * network_s <= after.network_time(strategy) * (1 + 1e-9)
        assert after.network_time(strategy) <= 0.7 * network_s or network_s == 0


def test_a_plan_that_was_run_has_costs_of_what_it_took() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    task = PlanningTask(
        capture(model, (torch.zeros(32, 16),), loss_fn=lambda x: x.square().mean()),
        load_cluster("cpu"),
        measured=(("all_reduce", 3, ((1024.0, 1e-3), (2.0**20, 5e-3))),),
    )
    plan = picks.mini_time(task, DEVICES).plan
    assert as_it_took(plan) is plan
    found = as_it_took(replace(plan, measured_s=3 * plan.time_s))

    assert found.time_s == found.measured_s and found.strategy_hash == plan.strategy_hash
    assert [t for _, t in found.frontier] == pytest.approx([3 * t for _, t in plan.frontier])
    assert plan.captured is not None
    before, after = (make_space(plan.captured, p.settings) for p in (plan, found))
    for space, factor in ((before, 1), (after, 3)):
        strategy = found.choices.strategy(space)
        time_s = space.compute_time(strategy) + space.network_time(strategy)
        assert time_s == pytest.approx(factor * plan.time_s)
    assert found.settings.bucket_bytes == plan.settings.bucket_bytes
