"""Plans are run before one is taken."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import MeasureOptions, Plan, TensorOptError, measure
from tensoropt_torch.measure.runs import race as races
from tensoropt_torch.measure.runs.budget import Budget, OutOfTimeError
from tensoropt_torch.measure.runs.training import StepTimes, Training
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.planner import finalists
from tensoropt_torch.progress import silent
from tests.distributed.harness import forget_plans, run_ranks
from tests.measure.logged import logged_warnings

HERE = "tests.measure.runs.test_finalists"
QUICK = MeasureOptions(max_bytes=2048, budget_s=20.0, random_strategies=1, rounds=1)
UNHURRIED = replace(QUICK, budget_s=500.0)  # all that are to be run are, on any machine


class Head(nn.Module):
    """Something that nobody can initialise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight * self.scale).square().mean()


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64), Head())
    return nn.Sequential(*layers)


BATCH = (torch.linspace(-1, 1, 256 * 64).reshape(256, 64),)


@dataclass
class Watched:
    """What was run: the plans, in order, and what they are said to have taken."""

    runs: list[str]
    made_up_s: dict[str, float]


def watch(made_up: bool) -> Watched:
    """From now on trainings of this process; the less is stored, the faster they are said to
    be."""
    watched, times = Watched([], {}), Training.times

    def watching(training: Training, *args: Any, **kwargs: Any) -> StepTimes:
        assert isinstance(training.module, ParallelModule)
        plan = training.module.plan
        watched.runs.append(plan.strategy_hash)
        found = times(training, *args, **kwargs)
        if made_up:
            found = replace(found, step_s=plan.memory_bytes)
        least_s = watched.made_up_s.get(plan.strategy_hash, math.inf)
        watched.made_up_s[plan.strategy_hash] = min(least_s, found.step_s)
        return found

    Training.times = watching  # type: ignore[method-assign]
    return watched


def find(measuring: MeasureOptions = QUICK, own: nn.Module | None = None, **keywords: Any) -> Plan:
    return found(own or model(), BATCH, measuring=measuring, **keywords)


def found(*model_and_batch: Any, **keywords: Any) -> Plan:
    finalists.NEAR = math.inf  # whatever this machine is busy with
    plan = tensoropt_torch.find_strategy(*model_and_batch, inputs="sharded", **keywords)
    return replace(plan, captured=None)


@dataclass
class Found:
    first: Plan
    again: Plan
    predicted: Plan
    runs: list[str]
    runs_again: int
    runs_of_predicted: int
    made_up_s: dict[str, float]
    is_unchanged: bool
    losses: list[float]


def measure_nothing_else() -> None:
    """From now on in this process but the plans that are run, so that the frontier is the same on
    every machine."""
    measure.profiled_task = lambda task, *_: task  # type: ignore[assignment]
    measure.with_operators = lambda task, *_: task  # type: ignore[assignment]


def picked(home: str) -> Found:
    os.environ["TENSOROPT_HOME"] = home
    measure_nothing_else()
    watched = watch(made_up=True)
    own = model()
    values = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    random = torch.get_rng_state()
    first = find(UNHURRIED, own)
    is_unchanged = torch.equal(random, torch.get_rng_state()) and all(
        torch.equal(tensor, values[name]) for name, tensor in own.state_dict().items()
    )
    runs, watched.runs = watched.runs, []
    forget_plans(home)
    again = find(UNHURRIED)
    runs_again, watched.runs = len(watched.runs), []
    predicted = find(replace(UNHURRIED, finalists=1))
    parallel = tensoropt_torch.parallelize(own, first, BATCH)
    losses = [float(parallel(share(BATCH[0])).detach())]
    return Found(
        first,
        again,
        predicted,
        runs,
        runs_again,
        len(watched.runs),
        watched.made_up_s,
        is_unchanged and all(p.grad is None for p in own.parameters()),
        losses,
    )


def share(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(torch.distributed.get_world_size())[torch.distributed.get_rank()]


def test_the_fastest_that_was_run_is_taken(tmp_path: Path) -> None:
    mine, other = run_ranks(2, f"{HERE}:picked", str(tmp_path))
    assert mine.first == other.first and mine.losses == other.losses
    assert len(set(mine.runs)) > 1
    assert mine.runs == other.runs
    fastest = mine.first.strategy_hash
    assert mine.first.measured_s == mine.made_up_s[fastest] == min(mine.made_up_s.values())
    assert mine.predicted.measured_s is None and mine.runs_of_predicted == 0
    assert mine.predicted.strategy_hash in mine.runs
    assert mine.is_unchanged
    # The next job does not run them again.
    assert mine.runs_again == 0
    assert mine.again.strategy_hash == fastest
    assert mine.again.measured_s == mine.first.measured_s
    assert Plan.from_json(mine.first.to_json()) == mine.first


def without_time(home: str) -> list[float | None]:
    os.environ["TENSOROPT_HOME"] = home

    def out_of_time(*_: Any, **__: Any) -> StepTimes:
        raise OutOfTimeError

    measured = [find(replace(QUICK, budget_s=0.01)).measured_s]  # of the first, at least
    times, Training.times = Training.times, out_of_time  # type: ignore[assignment]
    for file in Path(home).glob("steps/*.json"):
        file.unlink(missing_ok=True)
    torch.distributed.barrier()
    measured.append(find().measured_s)
    Training.times = times  # type: ignore[method-assign]
    return measured


def test_the_predicted_one_is_taken_where_there_is_no_time(tmp_path: Path) -> None:
    for some, none in run_ranks(2, f"{HERE}:without_time", str(tmp_path)):
        assert none is None
        assert some is None or some > 0


def damaged(home: str) -> list[str]:
    os.environ["TENSOROPT_HOME"] = home
    find()
    paths = list(Path(home).glob("steps/*.json"))
    torch.distributed.barrier()
    if torch.distributed.get_rank() == 0:
        for path in paths:
            path.write_text(path.read_text()[:-30])
    forget_plans(home)
    with logged_warnings() as messages:
        assert find().measured_s is not None
    return [message for message in messages if "run again" in message]


def test_a_damaged_file_is_not_used(tmp_path: Path) -> None:
    first, second = run_ranks(2, f"{HERE}:damaged", str(tmp_path))
    assert first and all("steps" in message and "damaged" in message for message in first)
    assert second == []


def on_meta_and_others(home: str) -> list[float | None]:
    os.environ["TENSOROPT_HOME"] = home
    own = model().to("meta")
    of_meta = find(own=own)
    inputs = found(own, (BATCH[0].to("meta"),), measuring=QUICK)
    frozen = find(own=model().requires_grad_(False))
    with torch.no_grad():
        without_grad = find(own=nn.Sequential(*model(), nn.Identity()))
    return [plan.measured_s for plan in (of_meta, without_grad, inputs, frozen)]


def test_what_can_be_run_is(tmp_path: Path) -> None:
    for measured in run_ranks(2, f"{HERE}:on_meta_and_others", str(tmp_path)):
        of_meta, without_grad, inputs, frozen = measured
        assert of_meta and without_grad  # by values that do not matter; it is training
        assert inputs is None and frozen is None


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 256), nn.GELU())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(ids)
        return output.square().mean()


def examples_that_fail(home: str) -> tuple[float | None, list[str], float | None]:
    os.environ["TENSOROPT_HOME"] = home
    ids = torch.full((256,), 99)  # as values of an example that nobody has set may be
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failed = found(Lookup(), (ids,), measuring=QUICK)
    messages = [str(w.message) for w in caught if "plans are not run" in str(w.message)]
    return failed.measured_s, messages, found(Lookup(), (ids % 16,), measuring=QUICK).measured_s


def test_values_that_cannot_be_run_are_told(tmp_path: Path) -> None:
    for failed, messages, right in run_ranks(2, f"{HERE}:examples_that_fail", str(tmp_path)):
        assert failed is None and len(messages) == 1
        assert right is not None


def test_at_least_one_plan_is_taken() -> None:
    with pytest.raises(TensorOptError, match=r"finalists = 0 .* 1"):
        found(model(), BATCH, measuring=replace(QUICK, finalists=0))


def several_outputs(home: str) -> list[float | None]:
    os.environ["TENSOROPT_HOME"] = home

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.layers[:4](x) + self.layers[4](x)
            return {"loss": y.square().mean(), "logits": y}

    examples = [
        tensoropt_torch.Example(Both(), BATCH),
        tensoropt_torch.Example(Both(), BATCH, outputs="all"),
        tensoropt_torch.Example(model()[:4], BATCH, outputs="all"),
    ]
    return [found(example, measuring=QUICK).measured_s for example in examples]


def test_models_return_what_they_like(tmp_path: Path) -> None:
    for measured in run_ranks(2, f"{HERE}:several_outputs", str(tmp_path)):
        assert all(seconds is not None and seconds > 0 for seconds in measured)


@pytest.mark.parametrize("memory", ["sums", "simulated"])
def test_plans_that_are_run_fit_the_limit(tmp_path: Path, memory: str) -> None:
    for limit, plans in run_ranks(2, f"{HERE}:limited", (str(tmp_path), memory)):
        assert plans
        for plan in plans:
            used = plan.peak_bytes if memory == "simulated" else plan.memory_bytes
            assert used <= limit


def limited(payload: tuple[str, str]) -> tuple[float, list[Plan]]:
    home, memory = payload
    os.environ["TENSOROPT_HOME"] = home
    measure_nothing_else()
    cluster = _of_slow_links()
    frontier = tensoropt_torch.find_frontier(model(), BATCH, inputs="sharded", cluster=cluster)
    ends: list[float] = [frontier.smallest.memory_bytes, frontier.fastest.memory_bytes]
    if memory == "simulated":
        peaks = [p.peak_bytes for p in tensoropt_torch.simulate.simulate_frontier(frontier)]
        ends = [min(peaks), max(peaks)]
    assert ends[1] > 1.5 * ends[0]
    limit = sum(ends) / 2
    watched: list[Plan] = []
    times = Training.times

    def watching(training: Training, *args: Any, **kwargs: Any) -> StepTimes:
        assert isinstance(training.module, ParallelModule)
        watched.append(replace(training.module.plan, captured=None, variants=()))
        return times(training, *args, **kwargs)

    Training.times = watching  # type: ignore[method-assign]
    plan = find(memory_limit=limit, memory=memory, cluster=cluster)
    return limit, [*watched, plan]


def _of_slow_links() -> tensoropt_torch.Cluster:
    """Messages are so slow that repeated computing pays: some plans need twice the memory of
    others."""
    cluster = tensoropt_torch.load_cluster("cpu")
    fast = replace(cluster.device, flops_per_s={"float32": 3e11}, memory_bandwidth_bytes_per_s=5e10)
    slow = [replace(level, bandwidth_bytes_per_s=2e8, latency_s=3e-4) for level in cluster.levels]
    return replace(cluster, device=fast, levels=tuple(slow))


def race(
    times_s: dict[str, list[float]], rivals_s: Sequence[float] = ()
) -> tuple[dict[str, float], list[str]]:
    """Of plans that take these seconds, round by round, beside others that were run before; and
    which were run, in order."""
    order: list[str] = []

    def run(name: str) -> StepTimes:
        order.append(name)
        return StepTimes(times_s[name][order.count(name) - 1], 0.0, 0.0)

    runs = [partial(run, name) for name in times_s]
    budget = Budget(None, torch.device("cpu"))
    found = races._race(runs, rivals_s, budget, silent)
    return {name: min(found[index]) for index, name in enumerate(times_s)}, order


def test_those_that_are_behind_leave_the_race() -> None:
    best, order = race({"slow": [2.0], "near": [1.15] * 6, "fast": [1.0] * 6})
    assert best == {"slow": 2.0, "near": 1.15, "fast": 1.0}
    assert order == ["slow", "near", "fast", *["near", "fast"] * 2]


def test_a_disturbed_round_does_not_decide() -> None:
    best, order = race({"fast": [1.4, 1.0, 1.0, 1.0, 1.0, 1.0], "near": [1.02] * 6})
    assert best == {"fast": 1.0, "near": 1.02}
    assert order == ["fast", "near"] * 6


def test_a_single_one_races_against_those_that_were_run_before() -> None:
    best, order = race({"new": [1.3, 1.0, 1.0, 1.0, 1.0, 1.0]}, [1.1])
    assert best == {"new": 1.0} and len(order) == 6
    best, order = race({"slow": [2.0]}, [1.0])
    assert best == {"slow": 2.0} and order == ["slow"]
