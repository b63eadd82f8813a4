"""Costs are corrected by plans that were run, and what is then picked is run as well."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import _C, MeasureOptions, Plan, TensorOptError, load_cluster, measure
from tensoropt_torch.config import Cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure import PlanRun, Race, corrected
from tensoropt_torch.measure.fits import Scales
from tensoropt_torch.measure.runs.spaces import spaces_of
from tensoropt_torch.measure.runs.training import StepTimes, Training
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.plan import Choices
from tensoropt_torch.planner import finalists, picks
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tests.distributed.harness import run_ranks

HERE = "tests.measure.test_correction"
DEVICES = 4


def of_slow_links() -> Cluster:
    """Messages are so slow that repeated computing pays."""
    cluster = load_cluster("cpu")
    fast = replace(cluster.device, flops_per_s={"float32": 3e11}, memory_bandwidth_bytes_per_s=5e10)
    slow = [replace(level, bandwidth_bytes_per_s=2e8, latency_s=3e-4) for level in cluster.levels]
    return replace(cluster, device=fast, levels=tuple(slow))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.fixture(scope="module")
def task() -> PlanningTask:
    captured = capture(model(), (torch.zeros(256, 64),), loss_fn=loss)
    return PlanningTask(captured, of_slow_links())


def run_of(task: PlanningTask, seed: int, scales: Scales) -> tuple[str, PlanRun]:
    """A random strategy that took what these scales say."""
    (space,) = spaces_of(task, DEVICES)
    strategy = space.core.random_strategy(seed)
    plan = Plan.of(space.core, space.settings, space.captured, strategy)
    network_s, collectives = space.network(strategy)
    network_s = scales.network * network_s + scales.collective_s * collectives
    step_s = scales.compute * space.core.compute_time(strategy) + network_s
    return plan.strategy_hash, PlanRun(1, plan.choices, step_s, step_s, network_s)


def any_that_stays(task: PlanningTask, runs: dict[str, PlanRun]) -> str:
    """The run beside which the fewest stay: seconds for each collective do not change its own
    programs."""
    return min(runs, key=lambda name: len(corrected(task, DEVICES, runs, name).runs))


@pytest.mark.parametrize("seed", range(6))
def test_runs_are_predicted_as_they_were_measured(task: PlanningTask, seed: int) -> None:
    generator = random.Random(seed)
    delay_s = generator.choice([0.0, 1e-4, 2e-4])
    factor = generator.uniform(0.5, 3)  # one, since reshards copy, which is computing
    scales = Scales(factor, factor, delay_s)
    runs = dict(run_of(task, 10 * seed + number, scales) for number in range(8))
    found = corrected(task, DEVICES, runs, any_that_stays(task, runs))
    near = 0.01  # what was not expected counts against it
    core = make_space(found.task.captured, found.task.settings(DEVICES))
    for name, run in runs.items():
        network_s = core.network_time(run.choices.strategy(core))
        if name in found.runs:
            assert found.runs[name] == run
            assert network_s == pytest.approx(run.network_s, rel=near), (seed, name)
        else:  # another way is shorter now
            assert network_s < (1 + near) * run.network_s, (seed, name)
    if delay_s == 0:  # but for ways that take as long
        assert len(found.runs) > len(runs) / 2, seed


def test_a_way_of_fewer_collectives_is_another_program(task: PlanningTask) -> None:
    """Where each takes 0.2 ms more, some strategies reshard otherwise; but not the fastest,
    whichever that is."""
    runs = dict(run_of(task, number, Scales(1.0, 1.0, 2e-4)) for number in range(20))
    stays = any_that_stays(task, runs)
    found = corrected(task, DEVICES, runs, stays)
    assert stays in found.runs and len(found.runs) < len(runs)
    for other in runs.keys() - found.runs.keys():
        assert other in corrected(task, DEVICES, runs, other).runs


class Clock:
    """Steps take what is predicted at first, but so many times of it for the network."""

    def __init__(self, network: float) -> None:
        self.network = network
        self.runs: dict[str, float] = {}
        self._core: _C.SearchSpace | None = None
        made_up = self._made_up
        Training.times = lambda training, *_, **__: made_up(training)  # type: ignore[method-assign]

    def seconds(self, choices: Choices) -> tuple[float, float]:
        """Of a step, and of the network."""
        assert self._core is not None
        strategy = choices.strategy(self._core)
        network_s = self.network * self._core.network_time(strategy)
        return self._core.compute_time(strategy) + network_s, network_s

    def _made_up(self, training: Training) -> StepTimes:
        module = training.module
        assert isinstance(module, ParallelModule)
        plan = module.plan
        if self._core is None:
            assert plan.captured is not None
            self._core = make_space(plan.captured, plan.settings)
        step_s, network_s = self.seconds(plan.choices)
        self.runs.setdefault(plan.strategy_hash, step_s)
        return StepTimes(step_s, 0.0, network_s)


def picked(payload: tuple[str, float]) -> tuple[Plan, Plan, dict[str, float], list[float]]:
    """The plan of a job, the one that is predicted, what plans took, and what the points of the
    first frontier would."""
    home, network = payload
    os.environ["TENSOROPT_HOME"] = home
    measure.profiled_task = lambda task, *_: task  # type: ignore[assignment]
    measure.with_operators = lambda task, *_: task  # type: ignore[assignment]
    finalists.NEAR = math.inf
    options: dict[str, Any] = {"cluster": of_slow_links(), "inputs": "sharded", "loss_fn": loss}
    example = model(), (torch.linspace(-1, 1, 256 * 64).reshape(256, 64),)
    clock = Clock(network)
    plan = tensoropt_torch.find_strategy(*example, **options)
    one = MeasureOptions(finalists=1)
    predicted = tensoropt_torch.find_strategy(*example, **options, measuring=one)
    frontier = tensoropt_torch.find_frontier(*example, **options, num_devices=2)
    others = [clock.seconds(point.plan.choices)[0] for point in frontier]
    return replace(plan, captured=None), replace(predicted, captured=None), clock.runs, others


@pytest.mark.parametrize("network", [1.0, 0.02])
def test_what_the_corrected_costs_pick_is_run(tmp_path: Path, network: float) -> None:
    payload = str(tmp_path), network
    mine, other = run_ranks(2, f"{HERE}:picked", payload)
    assert mine[0] == other[0]
    plan, predicted, runs, others = mine
    assert plan.measured_s == min(runs.values()) <= min(others) * (1 + 1e-9)
    assert plan.time_s == pytest.approx(plan.measured_s, rel=0.05)  # copies are computing
    assert plan.frontier[-1][1] <= plan.time_s * (1 + 1e-9)
    assert (plan.strategy_hash == predicted.strategy_hash) == (network == 1.0)
    assert Plan.from_json(plan.to_json()) == plan


def nothing_better(payload: tuple[str, str]) -> tuple[list[list[str]], Plan, float]:
    """The strategies of each race, the plan that is taken, and the seconds of the first race."""
    home, what = payload
    os.environ["TENSOROPT_HOME"] = home
    measure.profiled_task = lambda task, *_: task  # type: ignore[assignment]
    measure.with_operators = lambda task, *_: task  # type: ignore[assignment]
    finalists.NEAR = math.inf
    picked, searched = picks.mini_time, list[Any]()
    raced: list[list[Plan]] = []
    budgets_s: list[float] = []

    def pick(*arguments: Any) -> Any:
        searched.append(arguments)
        if what == "nothing fits" and len(searched) > 1:
            raise TensorOptError("nothing fits")
        return picked(*arguments)

    def race(plans: list[Plan], *arguments: Any, **__: Any) -> Race:
        raced.append(plans)
        budgets_s.append(arguments[-1])
        if len(raced) > 1 and what == "fails":
            return Race(plans[0], complete=False)
        step_s = float(len(raced))
        runs = {p.strategy_hash: PlanRun(1, p.choices, step_s, step_s, step_s / 9) for p in plans}
        return Race(replace(plans[-1], measured_s=step_s), True, runs)

    picks.mini_time = pick
    measure.race = race
    example = model(), (torch.linspace(-1, 1, 256 * 64).reshape(256, 64),)
    plan = tensoropt_torch.find_strategy(
        *example, cluster=of_slow_links(), inputs="sharded", loss_fn=loss, memory="sums"
    )
    hashes = [[p.strategy_hash for p in plans] for plans in raced]
    return hashes, replace(plan, captured=None), budgets_s[0]


@pytest.mark.parametrize("what", ["is slower", "fails", "nothing fits"])
def test_the_fastest_stays_where_what_is_picked_by_it(tmp_path: Path, what: str) -> None:
    mine, other = run_ranks(2, f"{HERE}:nothing_better", (str(tmp_path), what))
    assert mine == other
    raced, plan, budget_s = mine
    assert 0 < budget_s < 0.8 * MeasureOptions().finalists_s  # there is time for another one
    assert plan.measured_s == 1.0 and plan.strategy_hash == raced[0][-1]
    assert len(raced) == (1 if what == "nothing fits" else 2)
    for hashes in raced[1:]:
        assert plan.strategy_hash in hashes[:2] and len(set(hashes)) == len(hashes)
