"""What stages cost at least, by tables of the whole graph, against what is found of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tensoropt_torch import load_cluster
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.staging.micro_batch_graph import MicroBatchGraph
from tensoropt_torch.staging.search import PROVED, SearchedStages, pipelines
from tests.stages.models import make

DEVICES = 4


def task_of(name: str) -> PlanningTask:
    case = make(name, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    return replace(PlanningTask(captured, load_cluster("cpu"), "adamw"), recompute=True)


FEW = ["gpt_tied", "masked"]
MORE = [pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "transformer")]


@pytest.mark.parametrize("name", [*FEW, *MORE])
def test_no_strategy_of_a_stage_costs_less(name: str) -> None:
    task = task_of(name)
    stages = 2
    graph = MicroBatchGraph(task, DEVICES, micro_batched(task.captured, 4))
    offered = graph.offered(stages)
    lines = graph.bounds(stages, offered).least(float("inf"))
    told = 0.0
    found = 0
    for stage, interval in offered:
        space = graph.stage_space(stages, interval)
        flight = graph.flight(stage, stages)
        space.build_in_flight([flight])
        least = lines[flight, interval.alike]
        for memory, time in graph.searched(space, flight):
            assert least.least_bytes <= memory * (1 + 1e-9)
            seconds = least.least_seconds(memory * (1 + 1e-9))
            assert seconds <= time * (1 + 1e-9), (stage, interval)
            told += seconds / time
            found += 1
    assert told > 0.5 * found, "they say next to nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "transformer"])
def test_what_known_strategies_rule_out_they_stand_for(name: str) -> None:
    task = task_of(name)
    wanted = SearchedStages(4, (2, 4), PROVED)
    everything = pipelines(task, wanted, DEVICES)
    points = [(one.memory_bytes, one.time_s) for one in everything.points]
    within = (1 + everything.guarantee.epsilon) ** 2  # of both searches
    for worse in (0.8, 0.99, 1.0, 1.2):
        known = [(memory * worse, time * worse) for memory, time in points[::3]]
        found = pipelines(task, wanted, DEVICES, known=known).points
        united = [*known, *((one.memory_bytes, one.time_s) for one in found)]
        for memory, time in points:
            assert any(m <= within * memory and t <= within * time for m, t in united), worse
