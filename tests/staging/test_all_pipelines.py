"""The search of stages against all pipelines of a small model: number of stages and of
micro-batches, schedule, cuts, and strategies of each stage, with recomputation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from tensoropt_torch import Cluster, load_cluster
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.staging.micro_batch_graph import FoundPipeline, MicroBatchGraph
from tensoropt_torch.staging.search import SCHEDULES, SearchedStages, pipelines

DEVICES = 4
EXACT = SearchSettings(epsilon=0)


def task_of(cluster: Cluster) -> PlanningTask:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4)]
    x, y = torch.zeros(32, 16), torch.zeros(32, 16)
    captured = capture(nn.Sequential(*layers), (x,), loss_fn=nn.MSELoss(), targets=(y,))
    return PlanningTask(captured, cluster, "adamw", recompute=True)


def linked(bandwidth: float) -> Cluster:
    """Two machines of two devices."""
    cluster = load_cluster("cpu")
    inner = cluster.levels[-1]
    outer = replace(
        inner,
        name="machine",
        count=2,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=1e-6,
        collectives={},
    )
    return replace(cluster, levels=(outer, replace(inner, count=2)))


def all_pipelines(task: PlanningTask, wanted: SearchedStages) -> Iterator[tuple[float, float]]:
    """Memory and simulated seconds of each that has a strategy of the exact frontier in each of its
    stages."""
    exact = replace(task, search=EXACT)
    for micro_batches, schedule in itertools.product(wanted.micro_batches, wanted.schedules):
        whole = MicroBatchGraph(exact, DEVICES, micro_batched(task.captured, micro_batches))
        graph = whole.under(schedule)
        for stages in (2, 4):
            of_stages = graph.intervals.of_stages(stages)
            points = {}
            for stage, several in enumerate(of_stages):
                flight = graph.flight(stage, stages)
                for one in several:
                    space = graph.stage_space(stages, one)
                    space.build_in_flight([flight])
                    held = graph.held_bytes(stage, one, stages)
                    points[stage, one.first, one.last] = graph.searched(space, flight, held=held)
            for chosen in itertools.product(*of_stages):
                if any(a.last != b.first for a, b in itertools.pairwise(chosen)):
                    continue
                own = [points[s, one.first, one.last][::3] for s, one in enumerate(chosen)]
                for costs in itertools.product(*(few[:4] for few in own)):
                    seconds = [time for _, time in costs]
                    yield max(m for m, _ in costs), graph._simulated_s(chosen, seconds)


def stands_for(one: FoundPipeline, memory: float, time: float, epsilon: float) -> bool:
    within = 1 + epsilon
    return one.memory_bytes <= within * memory and one.time_s <= within * time


@pytest.mark.parametrize("bandwidth", [1e10, 2e7])
def test_each_has_one_that_stands_for_it(bandwidth: float) -> None:
    task = task_of(linked(bandwidth))
    wanted = SearchedStages(4, (2, 4))
    assert wanted.schedules == SCHEDULES
    found = pipelines(task, wanted, DEVICES)
    assert found.guarantee.epsilon < 0.5
    everything = list(all_pipelines(task, wanted))
    assert len(everything) > 300
    for memory, time in everything:
        assert any(stands_for(one, memory, time, found.guarantee.epsilon) for one in found.points)
    # Beside strategies that are known, which rule out the most.
    for factor in (0.9, 1.0, 1.1):
        known = [(factor * one.memory_bytes, factor * one.time_s) for one in found.points[::3]]
        beside = pipelines(task, wanted, DEVICES, known=known)
        within = 1 + beside.guarantee.epsilon
        for memory, time in everything:
            assert any(m <= within * memory and t <= within * time for m, t in known) or any(
                stands_for(one, memory, time, beside.guarantee.epsilon) for one in beside.points
            ), factor


def test_gpipe_is_found_where_transfers_are_long() -> None:
    found = pipelines(task_of(linked(2e7)), SearchedStages(2, (8,)), DEVICES)
    assert {one.schedule for one in found.points} == {"1f1b", "gpipe"}
    for one in found.points:
        assert one.options.schedule == one.schedule
    near = pipelines(task_of(linked(1e12)), SearchedStages(2, (8,)), DEVICES)
    assert {one.schedule for one in near.points} == {"1f1b"}
