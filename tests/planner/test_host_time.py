"""Where the host needs longer to call operators than the device to run them, a step takes so
long."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tensoropt_torch import _C, find_frontier
from tensoropt_torch.config import Cluster, load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.planner.baselines import BASELINES, find_baselines
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, step_time_s, varied_strategy
from tensoropt_torch.telling.details import details_of

DEVICES = 4
LAUNCH_S = 1e-3
INPUT = "input"  # has no gradient
SEEDS = range(40)


def cluster(host_launch_s: float) -> Cluster:
    described = load_cluster("h100-8")
    return replace(described, device=replace(described.device, host_launch_s=host_launch_s))


def model() -> CapturedModel:
    with torch.device("meta"):
        layers = nn.Sequential(
            nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64), nn.Flatten()
        )
        return capture(layers, (torch.zeros(16, 64),), loss_fn=torch.mean)


def task(host_launch_s: float, **changes: object) -> PlanningTask:
    search = SearchSettings(epsilon=0.0)
    made = PlanningTask(model(), cluster(host_launch_s), search=search)
    return replace(made, **changes)  # type: ignore[arg-type]


def launches(space: _C.SearchSpace, strategy: _C.Strategy) -> int:
    """Counted one by one: operators forward and backward, and once more if they run again;
    reshards of values, again if they are made again, and of gradients."""
    count = 0
    for row in space.estimates(strategy):
        call = space.local_call(row.node, strategy.config[row.node])
        count += 1 + call.work.backward + (row.again_s > 0)
    for edge in space.edges_of(strategy):
        moves = edge.layout_from != edge.layout_to
        count += moves + (moves and edge.saved == _C.Saved.REMADE)
        has_gradient = edge.source != INPUT
        count += has_gradient and edge.gradient_from != edge.gradient_to
    return count


@pytest.mark.parametrize("recompute", [False, True])
def test_the_host_calls_operators_and_reshards(recompute: bool) -> None:
    planned = task(LAUNCH_S, recompute=recompute)
    space = make_space(planned.captured, planned.settings(DEVICES))
    for seed in SEEDS:
        strategy = varied_strategy(space, seed)
        expected = LAUNCH_S * launches(space, strategy)
        assert space.host_time(strategy) == pytest.approx(expected), seed


@pytest.mark.parametrize("launch_s", [1e-6, 1e-5, LAUNCH_S])
def test_points_take_the_larger_of_both_and_no_strategy_is_better(launch_s: float) -> None:
    planned = task(launch_s, recompute=True)
    space = make_space(planned.captured, planned.settings(DEVICES))
    found = planned.search.run(space)
    times = [time_s for _, time_s in found.points]
    assert times == sorted(set(times), reverse=True)
    for index, (memory, time_s) in enumerate(found.points):
        strategy = found.unroll(index)
        assert strategy.memory == pytest.approx(memory)
        assert strategy.time == time_s == pytest.approx(step_time_s(space, strategy))
    more = 1 + found.epsilon + 1e-9
    others = [varied_strategy(space, seed) for seed in SEEDS]
    others += [space.random_strategy(seed, 1.0) for seed in SEEDS]
    for strategy in others:
        time_s = step_time_s(space, strategy)
        assert any(m <= more * strategy.memory and t <= more * time_s for m, t in found.points), (
            strategy.memory,
            time_s,
        )


def test_a_host_that_is_never_late_changes_nothing() -> None:
    plain, early = task(0.0), task(1e-12)
    spaces = [make_space(t.captured, t.settings(DEVICES)) for t in (plain, early)]
    first, second = (plain.search.run(space) for space in spaces)
    assert list(first.points) == list(second.points)
    assert first.epsilon == second.epsilon


def test_plans_and_baselines_are_told_with_it() -> None:
    planned = task(LAUNCH_S)
    for baseline in find_baselines(planned, DEVICES, BASELINES):
        for index, (_, time_s) in enumerate(baseline.points):
            plan = baseline.plan(index)
            space = make_space(planned.captured, plan.settings)
            assert plan.time_s == time_s
            assert time_s == pytest.approx(step_time_s(space, plan.choices.strategy(space)))
            details = details_of(plan)
            assert sum(details.time.values()) == pytest.approx(time_s)
            assert details.time["waiting for the host"] > 0


def test_it_grows_with_micro_batches() -> None:
    with torch.device("meta"):
        layers, x = nn.Linear(64, 64), torch.zeros(16, 64)
    frontier = find_frontier(
        layers,
        (x,),
        loss_fn=torch.sum,
        num_devices=2,
        cluster=cluster(LAUNCH_S),
        max_micro_batches=4,
    )
    # linear and sum, forward and backward, and the gradients of both parameters.
    assert frontier.fastest.micro_batches == 1
    assert 4 * LAUNCH_S <= frontier.fastest.time_s <= 7 * LAUNCH_S
    assert all(p.time_s >= 4 * p.micro_batches * LAUNCH_S for p in frontier)
