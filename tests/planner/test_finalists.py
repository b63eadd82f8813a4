"""Which plans are run before one is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tensoropt_torch import simulate
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.finalists import NEAR, find_finalists
from tensoropt_torch.planner.task import PlanningTask

DEVICES = 4


@pytest.fixture(scope="module")
def task() -> PlanningTask:
    layers = (nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))
    model = nn.Sequential(*layers)
    captured = capture(model, (torch.randn(256, 64),), loss_fn=lambda output: output.sum())
    return PlanningTask(captured, load_cluster("cpu"), inputs="sharded")


def test_the_pick_comes_first_and_none_comes_twice(task: PlanningTask) -> None:
    frontier = find_frontier(task, DEVICES)
    limit = 10 * frontier.fastest.memory_bytes
    plans = find_finalists(task, frontier.fastest, limit)
    assert plans[0] == frontier.fastest.plan
    assert len({p.strategy_hash for p in plans}) == len(plans) > 1
    assert all(plan.time_s <= NEAR * plans[0].time_s for plan in plans)
    (data_parallel,) = find_baselines(task, DEVICES, ["data parallel"])
    plain = data_parallel.plan(len(data_parallel.points) - 1)
    assert plain.time_s <= NEAR * plans[0].time_s  # else this shows nothing
    assert plain.strategy_hash in [plan.strategy_hash for plan in plans]
    for plan in plans[1:]:
        assert (plan.frontier, plan.guarantee) == (plans[0].frontier, plans[0].guarantee)
        assert plan == replace(plans[0], parts=plan.parts)


def test_the_same_choices_in_other_micro_batches_are_another_strategy(task: PlanningTask) -> None:
    plan = find_frontier(task, DEVICES).fastest.plan
    halves = replace(plan, settings=replace(plan.settings, micro_batches=2))
    assert halves.strategy_hash != plan.strategy_hash


def test_all_fit_the_limit(task: PlanningTask) -> None:
    frontier = find_frontier(task, DEVICES)
    unlimited = find_finalists(task, frontier.fastest, 10 * frontier.fastest.memory_bytes)
    limit = max(plan.memory_bytes for plan in unlimited) - 1
    plans = find_finalists(task, frontier.at(limit), limit)
    assert plans and all(plan.memory_bytes <= limit for plan in plans)


def test_simulated_peaks_fit_as_well(task: PlanningTask) -> None:
    frontier = find_frontier(task, DEVICES)
    plans = find_finalists(task, frontier.fastest, 10 * frontier.fastest.memory_bytes)
    peaks = sorted(plan.peak_bytes or 0 for plan in simulate.within(task, plans, 1e12))
    assert len(peaks) == len(plans) and peaks[0] > 0
    fitting = simulate.within(task, plans, peaks[0])
    assert fitting and all(plan.peak_bytes == peaks[0] for plan in fitting)


def test_a_plan_says_whether_it_is_of_the_frontier(task: PlanningTask) -> None:
    frontier = find_frontier(task, DEVICES)
    assert frontier.smallest.plan.origin.startswith(f"point 0 of {len(frontier)}")
    fastest = frontier.fastest.plan
    other = fastest.with_part(time_s=1.25 * fastest.time_s)
    assert other.origin == "not on the frontier, predicted 25% above the fastest point"
    assert "0.5 s measured" not in repr(other)
    assert "500.000 ms measured" in repr(replace(other, measured_s=0.5))
