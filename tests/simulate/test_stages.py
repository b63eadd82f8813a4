"""Steps of stages: micro-batches that need what others need are left out, and peaks are those of a
step in which all run; picks of plans in stages are by these peaks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Example, StagedPlan, TensorOptError, find_stages
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.schedule import Repeat
from tensoropt_torch.program.stage_schedules import (
    alike_left_out,
    gpipe,
    interleaved,
    one_forward_one_backward,
)
from tensoropt_torch.simulate import StepSettings, simulated_stage, with_peaks
from tensoropt_torch.simulate.simulated_stage import SimulatedStages
from tensoropt_torch.simulate.step import profile_of
from tensoropt_torch.staging import StageOptions, plan_stages

STEP = StepSettings(measure_workspaces=False)
MIB = 2**20


class Layers(nn.Module):
    """Returns its loss, and what belongs to rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = x + layer(x).relu()
        return (x - y).square().mean(), x[:, :8]


def example(rows: int = 256) -> Example:
    return Example(Layers(), (torch.zeros(rows, 64), torch.zeros(rows, 64)))


def random_plan(captured: CapturedModel, options: StageOptions, seed: int) -> StagedPlan:
    seeds = itertools.count(100 * seed)

    def find(space: Any, settings: Settings, part: CapturedModel, held: float) -> Plan:
        return Plan.of(space, settings, part, space.random_strategy(next(seeds)))

    task = PlanningTask(captured, load_cluster("cpu"), recompute=seed % 2 == 1)
    return plan_stages(task, options, 4, find=find)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stages", [2, 4])
def test_peaks_are_those_of_all_micro_batches(stages: int, seed: int) -> None:
    captured = capture(Layers(), example().args)
    plan = random_plan(captured, StageOptions(stages, 16), seed)
    short, whole = (SimulatedStages(plan, captured, skips=skips) for skips in (True, False))
    for number in range(stages):
        found, expected = (profile_of(one.stage(number), STEP) for one in (short, whole))
        assert found.peak_bytes == expected.peak_bytes, (seed, number)
        assert found.phase_peaks == expected.phase_peaks, (seed, number)
        assert len(found.curve) < len(expected.curve)


class Wide(nn.Module):
    """Whose gradients are what a step needs memory for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return (x - y).square().mean()


@pytest.mark.parametrize("seed", [0, 4])
def test_recorded_micro_batches_need_no_more_than_operators_one_by_one(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Sums of gradients are let go of as they are sent."""
    captured = capture(Wide(), (torch.zeros(64, 512), torch.zeros(64, 512)))
    plan = random_plan(captured, StageOptions(2, 4), seed)
    found = [profile_of(SimulatedStages(plan, captured).stage(n), STEP) for n in range(2)]
    monkeypatch.setattr(simulated_stage, "is_recorded", lambda graph: False)
    for number in range(2):
        other = profile_of(SimulatedStages(plan, captured).stage(number), STEP)
        assert found[number].peak_bytes <= other.peak_bytes, (seed, number)


def test_what_is_left_out_runs_between_others_like_it() -> None:
    for stages, count in itertools.product((2, 4, 8), (1, 2, 5, 16, 17)):
        for schedule in one_forward_one_backward(stages, count):
            short = alike_left_out(schedule)
            repeated = [a.micro_batch for a in short.call if isinstance(a, Repeat)]
            run = [a.micro_batch for a in short.computes]
            assert sorted({*run, *repeated}) == list(range(count))
            assert short.in_flight == schedule.in_flight
            assert bool(repeated) == (count > schedule.in_flight + 3)
            assert run[-1] == count - 1 and short.computes[-1].reduces  # type: ignore[union-attr]
    for schedule in (*gpipe(2, 16), *interleaved(2, 16, 2)):
        assert alike_left_out(schedule) == schedule


def test_more_in_flight_needs_more() -> None:
    captured = capture(Layers(), example().args)
    task = PlanningTask(captured, load_cluster("cpu"))
    one, other = (
        with_peaks(plan_stages(task, StageOptions(2, 8, name), 2), captured, STEP)
        for name in ("1f1b", "gpipe")
    )
    assert all(more > less for more, less in zip(other.peaks, one.peaks, strict=True))


def test_plans_in_stages_are_picked_by_their_peaks() -> None:
    given = {"stages": 2, "micro_batches": 4, "num_devices": 4, "cluster": "cpu"}
    free = find_stages(example(2048), **given)
    assert free.peak_bytes == max(free.peaks) and len(free.peaks) == 2
    least = find_stages(example(2048), **given, memory_limit=free.peak_bytes - 1)
    assert least.peak_bytes < free.peak_bytes and least.time_s >= free.time_s
    simulated = tensoropt_torch.simulate_memory(example(2048), least, rank=0)
    assert simulated.peak_bytes == least.peaks[0]
    sums = find_stages(example(2048), **given, memory="sums")
    assert sums.peak_bytes is None
    with pytest.raises(TensorOptError, match="a simulated peak of at most"):
        find_stages(example(2048), **given, memory_limit=0.7 * MIB)


def test_ranks_of_other_stages_are_simulated() -> None:
    plan = find_stages(example(), stages=2, micro_batches=4, num_devices=4, cluster="cpu")
    peaks = [
        tensoropt_torch.simulate_memory(example(), plan, rank=rank).peak_bytes for rank in range(4)
    ]
    assert peaks[0] == peaks[1] == plan.peaks[0] and peaks[2] == peaks[3] == plan.peaks[1]
    with pytest.raises(TensorOptError, match="rank 4 is none of a plan for 4 devices"):
        tensoropt_torch.simulate_memory(example(), plan, rank=4)
