"""The search of stages against all cuts that there are."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch import Example, TensorOptError, find_stages, load_cluster
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.stages.intervals import Intervals
from tensoropt_torch.staging import StageOptions, plan_stages
from tensoropt_torch.staging.micro_batch_graph import MEMORY_STEP, FoundPipeline, MicroBatchGraph
from tensoropt_torch.staging.search import SearchedStages, pipelines
from tests.stages.models import make

EPSILON = 0.01  # of the searches of stages
DEVICES = 4


def task_of(name: str) -> PlanningTask:
    case = make(name, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    return replace(PlanningTask(captured, load_cluster("cpu"), "adamw"), recompute=True)


def costs(task: PlanningTask, plan: StagedPlan) -> tuple[float, float]:
    """Memory of the worst part, and the simulated step."""
    micro = micro_batched(task.captured, plan.micro_batches)
    graph = MicroBatchGraph(task, DEVICES, micro)
    ends = (0, *plan.cuts, micro.num_calls)
    chosen = [graph.intervals._interval(*pair) for pair in itertools.pairwise(ends)]
    seconds = [part.plan.time_s for part in plan.parts]
    worst = max(part.memory_bytes for part in plan.parts)
    return worst, graph._simulated_s(chosen, seconds)


def stands_for(found: FoundPipeline, memory: float, time: float) -> bool:
    within = (1 + EPSILON) * (1 + MEMORY_STEP)
    return found.memory_bytes <= within * memory and found.time_s <= (1 + EPSILON) * time


@pytest.mark.parametrize(
    "name",
    [
        "gpt_tied",
        pytest.param("llama", marks=pytest.mark.slow),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_it_finds_what_all_cuts_give(name: str) -> None:
    task = task_of(name)
    wanted = SearchedStages(4, (2, 4))
    found = pipelines(task, wanted, DEVICES).points
    assert found
    for micro_batches in wanted.micro_batches:
        intervals = Intervals(micro_batched(task.captured, micro_batches))
        for stages in (2, 4):
            inside = intervals.cuts(stages)[1:-1]
            chosen = itertools.combinations(inside, stages - 1)
            for cuts in itertools.islice(chosen, 0, None, 1 if stages == 2 else 23):
                options = StageOptions(cuts, micro_batches)
                for limit in (math.inf, found[len(found) // 2].memory_bytes):
                    try:
                        plan = plan_stages(task, options, DEVICES, limit)
                    except TensorOptError:
                        continue
                    offered = intervals.of_stages(stages)
                    ends = (0, *cuts, intervals.cuts(stages)[-1])
                    pairs = [*itertools.pairwise(ends)]
                    if all(
                        pair in {(i.first, i.last) for i in several}
                        for pair, several in zip(pairs, offered, strict=True)
                    ):
                        memory, time = costs(task, plan)
                        assert any(stands_for(one, memory, time) for one in found), (cuts, limit)


@pytest.mark.parametrize("name", ["llama", "masked", "skips"])
def test_what_is_found_is_planned_with_these_costs(name: str) -> None:
    task = task_of(name)
    for found in pipelines(task, SearchedStages(2, (2,), ("1f1b",)), DEVICES).points[::7]:
        assert found.cap_bytes == found.memory_bytes
        plan = plan_stages(task, found.options, DEVICES, found.cap_bytes)
        memory, time = costs(task, plan)
        assert memory <= found.memory_bytes * (1 + 1e-9)
        assert time == pytest.approx(found.time_s, rel=1e-6)
        assert plan.cuts == found.cuts
        assert [part.plan.settings.in_flight for part in plan.parts] == [2, 1]


def test_limits_and_numbers_are_those_that_are_asked_for() -> None:
    task = task_of("llama")
    wanted = SearchedStages(4, (2, 4))
    everything = pipelines(task, wanted, DEVICES).points
    limit = everything[len(everything) // 3].memory_bytes
    within = pipelines(task, wanted, DEVICES, limit).points
    assert all(one.memory_bytes <= limit for one in within)
    before = [one for one in everything if one.memory_bytes <= limit]
    assert within[-1].time_s <= (1 + EPSILON) * before[-1].time_s
    assert {one.stages for one in pipelines(task, SearchedStages(3, (2,)), DEVICES).points} == {2}
    assert pipelines(task, SearchedStages(2, (2,)), 3).points == ()


def example() -> Example:
    case = make("llama", torch.float32)
    return Example(case.model, case.args, **case.keywords)


def test_without_stages_they_are_searched() -> None:
    plan = find_stages(example(), cluster="cpu", num_devices=DEVICES, max_micro_batches=4)
    assert plan.stages in (2, 4)
    assert plan.num_devices == DEVICES
    assert plan.micro_batches in (1, 2, 4)
    given = find_stages(
        example(), cluster="cpu", num_devices=DEVICES, max_stages=2, micro_batches=2
    )
    assert (given.stages, given.micro_batches) == (2, 2)


def test_several_micro_batches_are_tried_where_nothing_is_said_of_them() -> None:
    with torch.device("meta"):
        layers = [nn.Linear(2048, 2048) for _ in range(8)]
        x = torch.zeros(4096, 2048)
    given: dict[str, Any] = {"loss_fn": nn.MSELoss(), "targets": (x,), "cluster": "cpu"}
    model = nn.Sequential(*layers)
    plan = find_stages(model, (x,), num_devices=2, **given)
    most = find_stages(model, (x,), num_devices=2, max_micro_batches=16, **given)
    assert plan.micro_batches == most.micro_batches > 1
    # A batch that cannot be cut, and one whose rows are in another dim.
    normed = nn.Sequential(*layers[:4], nn.BatchNorm1d(2048), *layers[4:])
    assert find_stages(normed, (x,), num_devices=2, **given).micro_batches == 1
    across = find_stages(model, (x,), num_devices=2, inputs={"input": 1}, **given)
    assert across.micro_batches == 1


@pytest.mark.parametrize("chunks", [1, 2])
def test_interleaved_ones_are_searched(chunks: int) -> None:
    """With 1 of any number of chunks."""
    plan = find_stages(
        example(),
        cluster="cpu",
        num_devices=DEVICES,
        max_micro_batches=4,
        schedule="interleaved",
        chunks=chunks,
    )
    assert (plan.schedule, plan.chunks) == ("interleaved", 2)
    assert plan.micro_batches % plan.stages == 0
    assert len(plan.parts) == plan.stages * plan.chunks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_stages": 0}, "max_stages = 0"),
        ({"stages": 2, "max_stages": 4}, "give it, or stages="),
        ({"micro_batches": 0}, "micro_batches = 0"),
        (
            {"schedule": "interleaved", "micro_batches": 1},
            "by the interleaved schedule, which takes multiples of",
        ),
        ({"schedule": "fast"}, "schedule='fast' is not known"),
        (
            {"schedule": "interleaved", "pin": {"layers.1": "stage"}, "max_stages": 2},
            "interleaved stages are searched without pinned modules",
        ),
        ({"chunks": 2}, "stages have several chunks by schedule='interleaved' alone"),
        ({"chunks": 0, "schedule": "interleaved"}, "chunks = 0"),
        ({"memory_limit": 1e3}, "no plan in up to 8 stages on 4 devices"),
        ({"stages": 2, "max_micro_batches": 4}, "give micro_batches="),
        ({"compiled": True}, "compiled= is not for plans in stages"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(TensorOptError, match=message):
        find_stages(example(), cluster="cpu", num_devices=DEVICES, **options)  # type: ignore[arg-type]
