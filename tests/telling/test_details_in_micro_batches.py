"""What a plan of several micro-batches says of a step."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.report.tables import plan_summary
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.details import details_of

COUNT = 4


def model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), torch.randn(64, 32)


def task() -> PlanningTask:
    module, x = model()
    captured = capture(module, (x,), loss_fn=torch.mean)
    cluster = load_cluster("h100-8")
    return PlanningTask(captured, cluster, in_micro_batches=(micro_batched(captured, COUNT),))


@pytest.mark.parametrize("seed", range(5))
def test_times_are_those_of_the_whole_step(seed: int) -> None:
    *_, (captured, settings) = task().graphs(4)
    space = make_space(captured, settings)
    plan = Plan.of(space, settings, captured, space.random_strategy(seed))
    details = details_of(plan)
    assert sum(details.time.values()) == pytest.approx(plan.time_s)
    moved = sum(one.time_s for one in details.collectives)
    assert moved <= details.time["reshards and collectives"] * (1 + 1e-9)
    description = details.description
    assert description.micro_batches == COUNT
    assert f"{COUNT} micro-batches" in plan_summary(description)


def test_the_frontier_is_the_best_of_both_graphs() -> None:
    both = dataclasses.replace(task(), search=SearchSettings(epsilon=0))
    united = find_frontier(both, 4)
    points = [(p.memory_bytes, p.time_s, p.micro_batches) for p in united]
    apart = []
    for captured, settings in both.graphs(4):
        space = make_space(captured, settings)
        apart += [(*p, settings.micro_batches) for p in both.search.run(space).points]
    expected = [
        a for a in apart if not any(b[0] <= a[0] and b[1] <= a[1] and b[:2] != a[:2] for b in apart)
    ]
    assert points == sorted(expected)
    assert {count for *_, count in points} == {1, COUNT}
    for point in (united.smallest, united.fastest):
        assert point.plan.settings.micro_batches == point.micro_batches
        again = Plan.from_json(point.plan.to_json()).with_model(both.captured)
        assert again.captured is not None and again.captured.micro_batches == point.micro_batches
        space = make_space(again.captured, again.settings)
        strategy = again.choices.strategy(space)
        seconds = space.network_time(strategy) + space.compute_time(strategy)
        assert seconds == pytest.approx(point.time_s)


def test_what_one_graph_stands_for_is_not_looked_for_in_the_other() -> None:
    both = task()
    united = find_frontier(both, 4)
    factor = 1 + both.search.epsilon
    apart = [
        point
        for captured, settings in both.graphs(4)
        for point in both.search.run(make_space(captured, settings)).points
    ]
    for memory, time in apart:
        assert any(p.memory_bytes <= factor * memory and p.time_s <= factor * time for p in united)
    assert united.smallest.memory_bytes == min(memory for memory, _ in apart)
    assert united.fastest.time_s == min(time for _, time in apart)


def test_plans_of_both_kinds_can_be_compared() -> None:
    frontier = find_frontier(task(), 4)
    changes = frontier.smallest.plan.diff(frontier.fastest.plan).changes
    assert any(change.name == "micro_batches" for change in changes)


def test_plan_files_without_micro_batches_load() -> None:
    plan = find_frontier(task(), 4).fastest.plan
    record = json.loads(dataclasses.replace(plan, captured=None).to_json())
    assert record["settings"].pop("micro_batches") == 1
    del record["hashes"]  # which such files have not either
    assert Plan.from_json(json.dumps(record)) == plan
