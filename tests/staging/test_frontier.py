"""Strategies in stages on the frontier of a model, and what is picked of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tensoropt_torch import (
    Cluster,
    Example,
    PlanningOptions,
    StagedPlan,
    TensorOptError,
    find_frontier,
    find_stages,
    find_strategy,
    load_cluster,
    profile,
)
from tensoropt_torch.cli import main as cli
from tensoropt_torch.plan import Plan, load_any
from tensoropt_torch.planner.stage_timeline import timeline_of
from tensoropt_torch.report.stage_tables import WIDTH, picture_of
from tensoropt_torch.simulate import step_of, with_peaks
from tensoropt_torch.staging.micro_batch_graph import MEMORY_STEP
from tensoropt_torch.staging.search import SearchedStages, pipelines
from tensoropt_torch.tasks import task_of
from tests.stages.models import make

DEVICES = 4
EPSILON = 0.01


def example() -> Example:
    case = make("llama", torch.float32)
    return Example(case.model, case.args, **case.keywords)


def slow_cluster() -> Cluster:
    """Two machines of two devices, between which little is sent in a step's time."""
    cluster = load_cluster("cpu")
    inner = cluster.levels[-1]
    outer = replace(
        inner, name="machine", count=2, bandwidth_bytes_per_s=2e6, latency_s=1e-5, collectives={}
    )
    return replace(cluster, levels=(outer, replace(inner, count=2)))


def options(**changes: Any) -> PlanningOptions:
    asked = {"cluster": slow_cluster(), "max_micro_batches": 8, "max_stages": 2, "recompute": True}
    return PlanningOptions(**(asked | changes), memory="sums")


def test_one_frontier_has_both() -> None:
    frontier = find_frontier(example(), num_devices=DEVICES, planning=options())
    whole = find_frontier(example(), num_devices=DEVICES, planning=options(max_stages=1))
    assert {point.stages for point in frontier} >= {2}
    costs = [(point.memory_bytes, point.time_s) for point in frontier]
    assert costs == sorted(costs) and len({time for _, time in costs}) == len(costs)
    task = task_of(example(), options())
    staged = pipelines(task, SearchedStages(2, (2, 4, 8)), DEVICES).points
    for one in (*whole, *staged):
        within = (1 + EPSILON) * (1 + MEMORY_STEP)
        assert any(
            memory <= within * one.memory_bytes and time <= within * one.time_s
            for memory, time in costs
        ), one


def test_picks_are_by_simulated_peaks_of_stages() -> None:
    frontier = find_frontier(example(), num_devices=DEVICES, planning=options())
    task = task_of(example(), options())
    point = next(point for point in reversed(frontier) if point.stages > 1)
    assert isinstance(point.plan, StagedPlan)
    limit = max(with_peaks(point.plan, task.captured, step_of(task)).peaks)
    asked = replace(options(), memory="simulated")
    found = find_strategy(example(), num_devices=DEVICES, planning=asked, memory_limit=limit)
    assert found.peak_bytes is not None and found.peak_bytes <= limit
    assert found.time_s <= 1.05 * point.plan.time_s


def test_a_pick_may_be_in_stages_and_is_kept_in_a_file(tmp_path: Path) -> None:
    planning = options(inputs="sharded")
    frontier = find_frontier(example(), num_devices=DEVICES, planning=planning)
    point = next(point for point in frontier if point.stages > 1)
    plan = find_strategy(
        example(), num_devices=DEVICES, planning=planning, memory_limit=point.memory_bytes
    )
    assert isinstance(plan, StagedPlan) and plan.inputs == "sharded"
    assert plan.memory_bytes <= point.memory_bytes * (1 + 1e-9)
    assert 0.7 * point.time_s < plan.time_s < 1.03 * point.time_s  # of slow links the form is above
    assert plan.frontier and plan.guarantee == frontier.guarantee
    assert timeline_of(plan).step_s == plan.time_s
    plan.save(tmp_path / "plan.json")
    loaded = load_any(tmp_path / "plan.json")
    assert loaded == plan and loaded.hash == plan.hash
    with pytest.raises(TensorOptError, match=r"is a plan in stages; read it with StagedPlan\.load"):
        Plan.load(tmp_path / "plan.json")
    text = plan.to_json()
    changed = text.replace('"stages": 2', '"stages": 1')
    with pytest.raises(TensorOptError, match="was changed by hand"):
        StagedPlan.from_json(changed)


def test_a_kept_plan_is_shown_as_it_was_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = example()
    plan = find_stages(case, cluster=slow_cluster(), num_devices=DEVICES, stages=2, micro_batches=4)
    plan.save(tmp_path / "plan.json")
    cli(["show", str(tmp_path / "plan.json")])
    shown = capsys.readouterr().out
    assert "2 stages, 4 micro-batches, 1f1b" in shown
    picture = picture_of(timeline_of(plan))
    assert picture in shown
    first, second = (line.removeprefix(f"stage {n} ") for n, line in enumerate(picture.split("\n")))
    assert len(first) == len(second) == WIDTH
    assert sorted({*first} - {"."}) == sorted({*second} - {"."}) == list("0123abcd")
    assert first.index("0") < second.index("0") and second.rindex("d") < first.rindex("d")


def test_profiles_have_the_better_of_both() -> None:
    frontier = find_frontier(example(), num_devices=DEVICES, planning=options())
    limit = next(point for point in frontier if point.stages > 1).memory_bytes

    def least_s(max_stages: int) -> float:
        planning = options(max_stages=max_stages)
        (row,) = profile(example(), device_counts=[DEVICES], planning=planning, memory_limit=limit)
        return math.inf if row.time_s is None else row.time_s

    assert least_s(2) < least_s(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_stages": 0}, "max_stages = 0"),
        ({"max_micro_batches": 1}, "give max_micro_batches=2 or more"),
        ({"pin": {"*": "whole"}}, "not supported with pin= or forbid="),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorOptError, match=message):
        find_frontier(example(), num_devices=DEVICES, planning=options(**changes))
