"""Plans in stages are run before one is taken, beside others with the same cuts and one without
stages, and are kept for later jobs."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import tensoropt_torch
from tensoropt_torch import (
    After,
    Before,
    MeasureOptions,
    Plan,
    StagedPlan,
    find_stages,
    find_strategy,
    measure,
    strategy,
)
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs import race as races
from tensoropt_torch.measure.runs.training import StepTimes, Training
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.stage_groups import stage_groups
from tensoropt_torch.staging import contenders, finding
from tests.distributed.harness import run_ranks

HERE = "tests.staging.test_contenders"
MEASURING = MeasureOptions(budget_s=500.0)
SLOW_S, QUICK_S = 2.0, 1.0


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(4)))


BATCH = (torch.linspace(-1, 1, 2**15).view(256, 128),)
GIVEN: dict[str, Any] = {"loss_fn": F.mse_loss, "targets": (torch.zeros(256, 128),)}


def slow_links() -> tensoropt_torch.Cluster:
    cluster = tensoropt_torch.load_cluster("cpu")
    levels = [replace(level, bandwidth_bytes_per_s=1e8) for level in cluster.levels]
    return replace(cluster, levels=tuple(levels))


def watch(slow: Collection[str]) -> list[ParallelModule]:
    """What trains in this process from now on; strategies that are ``slow`` are said to take
    longer than others."""
    modules: list[Any] = []
    times = Training.times

    def watching(training: Training, *args: Any, **kwargs: Any) -> StepTimes:
        assert isinstance(training.module, ParallelModule)
        plan = training.module.plan
        modules.append(plan)
        found = times(training, *args, **kwargs)
        return replace(found, step_s=SLOW_S if plan.strategy_hash in slow else QUICK_S)

    Training.times = watching  # type: ignore[method-assign]
    return modules


def measure_plans_alone() -> None:
    for room in (measure, strategy, finding):
        vars(room).update(profiled_task=_as_it_is, with_operators=_as_it_is)


def _as_it_is(task: PlanningTask, *_: Any) -> PlanningTask:
    return task


@dataclass
class Found:
    """Of one rank."""

    predicted: str
    taken: list[Plan | StagedPlan]
    runs: list[list[tuple[str, bool]]]  # strategies, and whether they are in stages
    losses: list[float]
    groups: int
    is_unchanged: bool


def raced(home: str) -> Found:
    os.environ["TENSOROPT_HOME"] = home
    races.MARGINS = (0.5,)
    contenders.NEAR = 1e9  # whatever this machine is busy with
    measure_plans_alone()
    own = model()
    values = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    slow: set[str] = set()
    plans = watch(slow)
    runs, taken = [], []

    def note(plan: Plan | StagedPlan) -> None:
        runs.append([(one.strategy_hash, isinstance(one, StagedPlan)) for one in plans])
        plans.clear()
        taken.append(replace(plan, captured=None))

    cut: dict[str, Any] = {"stages": ["2"], "micro_batches": 2, **GIVEN}
    predicted = find_stages(own, BATCH, measuring=replace(MEASURING, finalists=1), **cut)
    assert not plans
    slow.add(predicted.strategy_hash)
    before = len(dist.distributed_c10d._world.pg_map)
    note(find_stages(own, BATCH, measuring=MEASURING, **cut))
    note(find_stages(own, BATCH, measuring=MEASURING, **cut))  # as it was kept
    gc.collect()
    groups = len(dist.distributed_c10d._world.pg_map) - before
    assert stage_groups() is None
    searched: dict[str, Any] = {"max_stages": 2, "max_micro_batches": 4, "cluster": slow_links()}
    for _ in range(2):  # the second one is kept
        note(find_strategy(own, BATCH, measuring=MEASURING, **searched, **GIVEN))
    losses = []
    for plan in taken[1:3]:
        parallel = tensoropt_torch.parallelize(model(), plan, BATCH, **GIVEN)
        loss = parallel(*BATCH, *GIVEN["targets"])
        loss.backward()
        losses.append(float(loss.detach()))
    expected = float(F.mse_loss(own(*BATCH), *GIVEN["targets"]))
    is_unchanged = all(torch.equal(t, values[n]) for n, t in own.state_dict().items())
    return Found(predicted.strategy_hash, taken, runs, [*losses, expected], groups, is_unchanged)


def test_the_fastest_that_was_run_is_taken(tmp_path: Path) -> None:
    first, *others = run_ranks(4, f"{HERE}:raced", str(tmp_path), 240)
    assert all(other == first for other in others)
    by_hand, again, searched, kept = first.taken
    # Of what find_stages runs, the one that is predicted to be fastest is slow.
    assert first.predicted in {name for name, _ in first.runs[0]}
    assert isinstance(by_hand, StagedPlan)
    assert by_hand.strategy_hash != first.predicted
    assert by_hand.measured_s == QUICK_S
    assert first.runs[1] == []
    assert again == by_hand
    # A plan in stages runs beside one without.
    assert {in_stages for _, in_stages in first.runs[2]} == {True, False}
    assert searched.measured_s == QUICK_S
    assert first.runs[3] == []
    assert kept == searched
    assert StagedPlan.from_json(by_hand.to_json()) == by_hand
    assert max(first.losses) - min(first.losses) < 1e-6
    assert first.is_unchanged
    assert first.groups == 2  # of the two axes of the mesh, which stays


def test_stages_of_one_device_have_no_contenders() -> None:
    plan = find_stages(model(), BATCH, stages=["2"], num_devices=2, **GIVEN)
    task = PlanningTask(capture(model(), BATCH, **GIVEN), slow_links())
    assert contenders.find_contenders(task, plan, 1e9) == [plan]


def kept_cuts(home: str) -> list[tuple[int, ...]]:
    os.environ["TENSOROPT_HOME"] = home
    measure_plans_alone()
    cuts: list[Any] = [["2"], [Before("2")], [After("2")], [Before("2")]]
    return [
        find_stages(model(), BATCH, stages=cut, measuring=MEASURING, **GIVEN).cuts for cut in cuts
    ]


def test_plans_are_kept_by_what_is_asked_for(tmp_path: Path) -> None:
    for by_name, before, after, again in run_ranks(2, f"{HERE}:kept_cuts", str(tmp_path), 120):
        assert by_name == before == again
        assert after > before


class Lookup(nn.Module):
    """Fails in its first stage alone if an id is out of range, in its last one if a class is."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 64)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in "1234"))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(self.table(ids))
        return found


def fails_in_one_stage(payload: tuple[str, int, int]) -> tuple[list[str], float, int]:
    """What is told of it, how long that takes, and how many groups are left."""
    home, wrong_id, wrong_class = payload
    os.environ["TENSOROPT_HOME"] = home
    measure_plans_alone()
    contenders.NEAR = 1e9
    ids, classes = torch.arange(32) % 16, torch.arange(32) % 64
    ids[3] += wrong_id
    classes[5] += wrong_class
    before = len(dist.distributed_c10d._world.pg_map)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plan = find_stages(
            Lookup(),
            (ids,),
            loss_fn=F.cross_entropy,
            targets=(classes,),
            stages=["layers.2"],
            micro_batches=2,
            measuring=MEASURING,
        )
    took_s = time.perf_counter() - began
    assert plan.measured_s is None
    gc.collect()
    assert stage_groups() is None
    words = [str(one.message) for one in told if "step fails" in str(one.message)]
    return words, took_s, len(dist.distributed_c10d._world.pg_map) - before


def fails_in_the_second_plan(home: str) -> tuple[list[str], int, int]:
    """What is told of it, how many plans were begun, and how many groups are left."""
    os.environ["TENSOROPT_HOME"] = home
    measure_plans_alone()
    contenders.NEAR = 1e9
    times, begun = Training.times, list[Training]()

    def failing(training: Training, *args: Any, **keywords: Any) -> StepTimes:
        if not any(one is training for one in begun):
            begun.append(training)
        if len(begun) > 1:
            raise RuntimeError("this plan fails")
        return times(training, *args, **keywords)

    Training.times = failing  # type: ignore[method-assign]
    before = len(dist.distributed_c10d._world.pg_map)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        options: dict[str, Any] = {"stages": 2, "micro_batches": 2, "measuring": MEASURING}
        find_stages(model(), BATCH, **GIVEN, **options)
    count = len(begun)
    begun.clear()
    gc.collect()
    assert stage_groups() is None
    words = [str(one.message) for one in told if "step fails" in str(one.message)]
    return words, count, len(dist.distributed_c10d._world.pg_map) - before


def test_a_race_that_fails_leaves_the_groups_of_all_plans(tmp_path: Path) -> None:
    for words, count, groups in run_ranks(
        4, f"{HERE}:fails_in_the_second_plan", str(tmp_path), 200
    ):
        assert len(words) == 1 and "this plan fails" in words[0]
        assert count == 2
        assert groups == 2  # of the job's mesh


@pytest.mark.parametrize(
    ("wrong", "rank", "words"), [((99, 0), 0, "looks up"), ((0, 99), 2, "looks up 104")]
)
def test_a_step_that_fails_in_one_stage_ends_on_all_ranks(
    tmp_path: Path, wrong: tuple[int, int], rank: int, words: str
) -> None:
    found = run_ranks(4, f"{HERE}:fails_in_one_stage", (str(tmp_path), *wrong), 200)
    for told, took_s, groups in found:
        assert len(told) == 1
        assert f"rank {rank}" in told[0] and words in told[0]
        assert took_s < 100  # ranks that wait would do so for minutes
        assert groups == 2
