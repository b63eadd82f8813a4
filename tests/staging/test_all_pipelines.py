"""The search of stages against all pipelines of a small model: number of stages and of
micro-batches, schedule, cuts, and strategies of each stage, with recomputation."""

from __future__ import annotations

import itertools
import math
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
from tensoropt_torch.staging.parts import plan_stages
from tensoropt_torch.staging.search import PROVED, SearchedStages, pipelines

DEVICES = 4
EXACT = SearchSettings(epsilon=0)


def task_of(cluster: Cluster, count: int = 4) -> PlanningTask:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(count)]
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
        for chunks in wanted.chunks if schedule == "interleaved" else (1,):
            graph = whole.under(schedule, chunks)
            for stages in (2, 4):
                if stages <= wanted.max_stages:
                    yield from all_of_stages(graph, stages, chunks)


def all_of_stages(
    graph: MicroBatchGraph, stages: int, chunks: int
) -> Iterator[tuple[float, float]]:
    of_parts = graph.intervals.of_stages(stages * chunks)
    points = {}
    for part, several in enumerate(of_parts):
        flight = graph.flight(part, stages)
        for one in several:
            space = graph.stage_space(stages, one)
            space.build_in_flight([flight])
            held = graph.held_bytes(part, one, stages)
            points[part, one.first, one.last] = graph.searched(space, flight, held=held)
    for chosen in itertools.product(*of_parts):
        if any(a.last != b.first for a, b in itertools.pairwise(chosen)):
            continue
        own = [points[part, one.first, one.last][::3] for part, one in enumerate(chosen)]
        for costs in itertools.product(*(few[:4] for few in own)):
            memories, seconds = zip(*costs, strict=True)
            memory = max(sum(memories[stage::stages]) for stage in range(stages))
            yield memory, graph._simulated_s(chosen, seconds)


def stands_for(one: FoundPipeline, memory: float, time: float, epsilon: float) -> bool:
    within = 1 + epsilon
    return one.memory_bytes <= within * memory and one.time_s <= within * time


@pytest.mark.parametrize("bandwidth", [1e10, 2e7])
def test_each_has_one_that_stands_for_it(bandwidth: float) -> None:
    task = task_of(linked(bandwidth))
    wanted = SearchedStages(4, (2, 4), PROVED)
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
    found = pipelines(task_of(linked(2e7)), SearchedStages(2, (8,), PROVED), DEVICES)
    assert {one.schedule for one in found.points} == {"1f1b", "gpipe"}
    for one in found.points:
        assert one.options.schedule == one.schedule
    near = pipelines(task_of(linked(1e12)), SearchedStages(2, (8,), PROVED), DEVICES)
    assert {one.schedule for one in near.points} == {"1f1b"}


def test_interleaved_ones_are_near_the_best_of_all() -> None:
    """Nothing is proved of them; and their plans are what is told of them."""
    task = task_of(linked(1e10), 8)
    wanted = SearchedStages(2, (4,), ("interleaved",), chunks=(2,))
    found = pipelines(task, wanted, DEVICES).points
    assert found
    everything = list(all_pipelines(task, wanted))
    assert len(everything) > 300
    off = []
    for memory, time in everything:
        within = [one.time_s for one in found if one.memory_bytes <= 1.02 * memory]
        off.append(min(within, default=math.inf) / time)
    assert max(off) < 1.1
    for one in (found[0], found[-1]):
        plan = plan_stages(task, one.options, DEVICES, one.cap_bytes)
        assert (plan.schedule, plan.chunks, len(plan.parts)) == ("interleaved", 2, 4)
        assert plan.memory_bytes == pytest.approx(one.memory_bytes, rel=1e-6)
        assert plan.time_s == pytest.approx(one.time_s, rel=1e-6)


def test_interleaved_ones_are_taken_where_they_are_faster() -> None:
    task = task_of(linked(1e12), 8)
    found = pipelines(task, SearchedStages(2, (4,)), DEVICES)
    fastest = found.points[-1]
    assert fastest.schedule == "interleaved"
    others = pipelines(task, SearchedStages(2, (4,), PROVED), DEVICES)
    assert fastest.time_s < others.points[-1].time_s
    for one in others.points:
        assert any(stands_for(two, one.memory_bytes, one.time_s, 0.02) for two in found.points)
