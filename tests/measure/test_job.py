"""Measuring a running job, and planning with it."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from tensoropt_torch import (
    MeasureOptions,
    Plan,
    ProfileOptions,
    TensorOptError,
    ValidationOptions,
)
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.config.cluster import COLLECTIVES
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure import profiling
from tensoropt_torch.measure.job_costs import with_operators
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.machine.key import MachineKey, key_of_job
from tensoropt_torch.measure.runs import random_strategies, validation
from tensoropt_torch.measure.runs.training import StepTimes, Training
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.parameter_queue import begin_value, parameter_queue
from tensoropt_torch.simulate import simulate_step
from tensoropt_torch.space.search_space import make_space, varied_strategy
from tests.distributed.harness import RankError, forget_plans, run_ranks
from tests.distributed.models import make
from tests.measure.logged import logged_warnings

HERE = "tests.measure.test_job"
QUICK = MeasureOptions(
    max_bytes=2048,
    budget_s=3.0,
    random_strategies=2,
    rounds=1,
    finalists=1,  # costs stay as they were measured
)
SHORT = ProfileOptions(max_bytes=2048, budget_s=1.0)


class InterruptedByTestError(Exception):
    pass


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    layers = (nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    return nn.Sequential(*layers), (torch.randn(8, 16),)


def sum_of(output: torch.Tensor) -> torch.Tensor:
    return output.sum()


def find(**arguments: Any) -> Plan:
    model, args = mlp()
    return tensoropt_torch.find_strategy(model, args, loss_fn=sum_of, measuring=QUICK, **arguments)


# --- Hardware profiles ---------------------------------------------------------


def interrupted_then_whole(home: str) -> tuple[HardwareProfile, HardwareProfile, Settings, int]:
    os.environ["TENSOROPT_HOME"] = home
    profiling.fit_runtime = lambda profile, *_: profile.cluster.device.runtime

    def stop(done: int, total: int, what: str) -> None:
        if done == 3:
            raise InterruptedByTestError

    with pytest.raises(InterruptedByTestError):
        tensoropt_torch.profile_hardware("cpu", options=SHORT, progress=stop)
    dist.barrier()
    (path,) = Path(home).glob("hardware/*.json")
    partial = HardwareProfile.load(path)
    dist.barrier()
    whole, written = tensoropt_torch.profile_hardware("cpu", options=SHORT)
    assert written == path
    calls: list[str] = []
    again, _ = tensoropt_torch.profile_hardware(
        "cpu", options=SHORT, progress=lambda done, total, what: calls.append(what)
    )
    assert again == whole
    return partial, whole, find().settings, len(calls)


def test_an_interrupted_measurement_goes_on_and_is_used(tmp_path: Path) -> None:
    results = run_ranks(2, f"{HERE}:interrupted_then_whole", str(tmp_path))
    partial, whole, settings, calls = results[0]
    assert results[1][1] == whole
    assert not partial.complete
    assert 0 < len(partial.curves) < len(COLLECTIVES)
    assert set(partial.curves) <= set(whole.curves)  # the very numbers
    assert whole.complete
    assert {name for name, _, _ in whole.curves} == set(COLLECTIVES)
    assert whole.machine.processes == 2
    assert calls == 0  # nothing is measured twice
    assert settings.measured == whole.curves
    assert settings.cluster["device"]["launch_overhead_s"] == pytest.approx(
        whole.cluster.device.launch_overhead_s
    )


def plan_with_file(payload: tuple[str, str]) -> str:
    home, text = payload
    os.environ["TENSOROPT_HOME"] = home
    key = key_of_job(torch.device("cpu"), [2])
    if dist.get_rank() == 0:
        path = profiling.profile_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    dist.barrier()
    with pytest.raises(TensorOptError) as caught:
        find()
    return str(caught.value)


def test_a_damaged_profile_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    messages = run_ranks(2, f"{HERE}:plan_with_file", (str(tmp_path), "{"))
    assert all("is damaged" in message for message in messages)


def test_a_profile_of_other_machines_is_refused_on_all_ranks(tmp_path: Path) -> None:
    """In place of their own."""
    key = MachineKey("another CPU", "cpu", 2, 1, 2, 1, "gloo", "2.13.0", (2,))
    profile = HardwareProfile(key, load_cluster("cpu"), ((2, 0),), complete=True)
    messages = run_ranks(2, f"{HERE}:plan_with_file", (str(tmp_path), profile.to_json()))
    assert all("was measured on something else (device: another CPU" in m for m in messages)


def foreign_profile(home: str) -> tuple[str, str]:
    os.environ["TENSOROPT_HOME"] = home
    model, args = mlp()
    key = replace(key_of_job(torch.device("cpu"), [2]), device="another CPU")
    cluster = tensoropt_torch.load_cluster("cpu")
    curves = (("all_reduce", 1, ((1024.0, 1e-3),)),)
    path = Path(home) / "foreign.json"
    if dist.get_rank() == 0:
        HardwareProfile(key, cluster, ((2, 0),), curves, complete=True).save(path)
    dist.barrier()
    planned = tensoropt_torch.find_frontier(model, args, cluster=path, num_devices=2)
    assert planned.settings.measured == curves
    elsewhere = tensoropt_torch.find_frontier(model, args, cluster=path, num_devices=4)
    assert elsewhere.settings.measured == ()
    with pytest.raises(TensorOptError) as caught:
        find(cluster=path)
    return str(caught.value), planned.settings.cluster["name"]


def test_a_foreign_profile_serves_planning_but_not_the_job(tmp_path: Path) -> None:
    for message, name in run_ranks(2, f"{HERE}:foreign_profile", str(tmp_path)):
        assert "device: another CPU instead of" in message
        assert name == "cpu"


def unwritable(folder: str) -> tuple[str, int, list[str]]:
    home = Path(folder) / "file"
    if dist.get_rank() == 0:
        home.write_text("")
    dist.barrier()
    os.environ["TENSOROPT_HOME"] = str(home / "below")
    with pytest.raises(TensorOptError) as caught:
        tensoropt_torch.profile_hardware("cpu", options=SHORT)
    with logged_warnings() as found:
        plan = find()
    return str(caught.value), len(plan.settings.operators), found


def test_without_a_folder_profiling_fails_and_planning_warns(tmp_path: Path) -> None:
    first, second = run_ranks(2, f"{HERE}:unwritable", str(tmp_path))
    for message, operators, _ in (first, second):
        assert "cannot be written" in message
        assert operators > 0
    assert any("what was measured is not kept" in text for text in first[2]), first[2]


# --- Operators -----------------------------------------------------------------


def plan_twice(home: str) -> tuple[Settings, Settings, float, float, list[str]]:
    os.environ["TENSOROPT_HOME"] = home
    first = find()
    forget_plans(home)
    second = find()
    space = make_space(second.captured, second.settings)
    strategy = second.choices.strategy(space)
    rows = space.estimates(strategy)
    operators_s = sum(row.time_s for row in rows)
    without = make_space(
        second.captured,
        replace(second.settings, operators=()),
    )
    roofline_s = sum(row.time_s for row in without.estimates(strategy))
    # What is left are the updates of parameters, which are not operators.
    updates = space.compute_time(strategy) - operators_s
    other = without.compute_time(strategy) - roofline_s
    return first.settings, second.settings, updates, other, [row.source for row in rows]


def test_operators_are_measured_once_and_enter_the_costs(tmp_path: Path) -> None:
    results = run_ranks(2, f"{HERE}:plan_twice", str(tmp_path))
    first, second, _, _, sources = results[0]
    assert results[1][:2] == (first, second)
    known = {record[0]: record for record in first.operators}
    assert any("aten.linear" in key for key in known)
    for record in second.operators:
        assert known.get(record[0], record) == record
    assert set(known) <= {record[0] for record in second.operators}
    assert "measured" in sources
    for _, settings, updates, other, _ in results:
        assert settings == second
        # Differing device figures aside, the updates are alike: both from one device.
        assert updates == pytest.approx(other, rel=1e-6)


def recurrent(home: str) -> list[str]:
    os.environ["TENSOROPT_HOME"] = home
    case = make("lstm", torch.float32)
    plan = tensoropt_torch.find_strategy(
        case.model,
        case.args,
        **case.keywords,
        measuring=replace(QUICK, budget_s=35.0, random_strategies=8),
    )
    return [record[0] for record in plan.settings.operators]


def test_operators_that_run_collectives_are_measured_too(tmp_path: Path) -> None:
    keys, _ = run_ranks(2, f"{HERE}:recurrent", str(tmp_path))
    assert any(key.startswith("tensoropt.lstm_shard") for key in keys), keys
    assert any(key.startswith("tensoropt.lstm.") for key in keys), keys
    assert all(";2 ranks" in key for key in keys if key.startswith("tensoropt.lstm_shard"))


def calls_of_halves(home: str) -> tuple[set[str], set[str], set[str]]:
    """Keys of calls: of the batch, of half of it, and of what was measured."""
    os.environ["TENSOROPT_HOME"] = home
    model, args = mlp()
    captured = capture(model, args, loss_fn=sum_of)
    halves = micro_batched(captured, 2)
    task = PlanningTask(captured, load_cluster("cpu"), in_micro_batches=(halves,))
    keys = []
    for graph, settings in task.graphs(2):
        space = make_space(graph, settings)
        strategies = [varied_strategy(space, seed) for seed in range(QUICK.random_strategies)]
        keys.append({row.key for s in strategies for row in space.estimates(s)})
    found = with_operators(task, 2, torch.device("cpu"), replace(QUICK, budget_s=20.0))
    whole, half = keys
    return whole, half, {record[0] for record in found.operators}


def test_operators_of_micro_batches_are_measured_too(tmp_path: Path) -> None:
    first, second = run_ranks(2, f"{HERE}:calls_of_halves", str(tmp_path))
    assert first == second
    whole, half, measured = first
    assert (half - whole) & measured
    assert (whole - half) & measured


# --- Network time --------------------------------------------------------------


def wait_for_the_other(_: None) -> tuple[float, float]:
    groups = AxisGroups((2,))
    groups.create([1])
    group = groups.name(1)
    x = torch.ones(4)
    gather = [0, 0, 0, 0, 2, dist.get_rank()]  # an all-gather of dim 0
    ops.reshard(x, gather, [group])
    dist.barrier()
    with ops.network_timing() as network_s:
        if dist.get_rank() == 1:
            time.sleep(0.5)
        ops.reshard(x, gather, [group])
        inside = network_s()
    ops.reshard(x, gather, [group])
    return inside, network_s()


def test_network_time_counts_waiting_once() -> None:
    (waited, after), (late, _) = run_ranks(2, f"{HERE}:wait_for_the_other")
    # A program and the collective inside it: twice would be a second.
    assert 0.45 < waited < 0.95
    assert late < 0.45
    assert after == 0.0  # nothing is counted outside


class OnAbsentDevice(torch.Tensor):
    """A tensor of a device that cannot be waited for, since there is none."""

    @staticmethod
    def __new__(cls) -> OnAbsentDevice:
        found: OnAbsentDevice = torch.Tensor._make_wrapper_subclass(cls, (4,), device="xpu")
        return found

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """The kernel is that of its device."""
        key = torch._C.DispatchKey
        python = torch._C.DispatchKeySet(key.Python) | torch._C.DispatchKeySet(
            key.PythonTLSSnapshot
        )
        with torch._C._ExcludeDispatchKeyGuard(python):
            return function(*args, **(kwargs or {}))


@pytest.mark.skipif(torch.xpu.is_available(), reason="the device is there")
def test_a_failure_does_not_end_the_timing_of_what_follows() -> None:
    halve = ([4, 0, 0, -1, 2, 0], [])
    with ops.network_timing() as network_s:
        with pytest.raises(RuntimeError, match="not linked"):
            begin_value(OnAbsentDevice(), *halve, parameter_queue(), 0)
        ops.reshard(torch.ones(4), *halve)
        assert network_s() > 0


# --- Validation ----------------------------------------------------------------


def plan_of(training: Training) -> Plan:
    assert isinstance(training.module, ParallelModule)
    return training.module.plan


def know_nothing() -> None:
    """What other tests have made up is not found."""
    os.environ["TENSOROPT_HOME"] = tempfile.mkdtemp()


def validate_with_made_up_times(_: None) -> tuple[validation.Validation, list[int]]:
    know_nothing()
    runs = itertools.count()

    def half(training: Training, _: int, **__: Any) -> StepTimes:
        """Of every second strategy the first of two runs is disturbed, of the others
        the second one."""
        plan = plan_of(training)
        space = make_space(plan.captured, plan.settings)
        number, strategy = divmod(next(runs), 10)
        slower = 1.5 if number == strategy % 2 else 1.0
        network_s = space.network_time(plan.choices.strategy(space))
        return StepTimes(slower * plan.time_s / 2, 0.0, slower * network_s * 2)

    Training.times = half
    random_strategies.Reference = lambda _: lambda: 1.0  # a calm machine
    Training.peak_bytes = lambda training, *_: 1.25 * plan_of(training).memory_bytes
    model, args = mlp()
    seen: list[int] = []
    found = tensoropt_torch.validate(
        model,
        args,
        loss_fn=sum_of,
        measure=False,
        options=ValidationOptions(strategies=10, seed=5),
        progress=lambda done, total: seen.append(done),
    )
    return found, seen


def test_validation_compares_predicted_with_measured() -> None:
    (found, seen), (other, _) = run_ranks(2, f"{HERE}:validate_with_made_up_times")
    assert found == other
    assert [row.seed for row in found.rows] == list(range(5, 15))
    assert seen == list(range(1, 21))
    assert [row.spread for row in found.rows] == pytest.approx([0.5] * 10)
    assert found.step_error == pytest.approx(1.0)
    assert found.network_error == pytest.approx(0.5)
    assert found.memory_error() == pytest.approx(0.2)
    assert found.memory_fraction("sums", 0.9) == pytest.approx(0.8)
    captured = capture(*mlp(), loss_fn=sum_of)
    task = PlanningTask(captured, load_cluster("cpu"))
    space = make_space(captured, task.settings(2))
    for row in found.rows:
        strategy = varied_strategy(space, row.seed)
        plan = Plan.of(space, task.settings(2), captured, strategy)
        assert row.simulated_bytes == simulate_step(plan, captured).peak_bytes
    assert found.rank_correlation == pytest.approx(1.0)


def validate_for_real(_: None) -> validation.Validation:
    know_nothing()
    model, args = mlp()
    return tensoropt_torch.validate(
        model,
        args,
        loss_fn=sum_of,
        measure=False,
        options=ValidationOptions(strategies=2, steps=2),
    )


def test_strategies_are_really_run() -> None:
    found, other = run_ranks(2, f"{HERE}:validate_for_real")
    assert found == other
    for row in found.rows:
        assert 0 < row.measured_network_s < row.measured_step_s
        assert row.measured_memory_bytes > 4 * (16 * 32 + 32 + 32 * 8 + 8)


def limit_after_validation(memory: Literal["sums", "simulated"]) -> float:
    know_nothing()
    Training.times = lambda *_, **__: StepTimes(1.0, 0.0, 0.0)
    Training.peak_bytes = lambda training, *_: 1e6 * plan_of(training).memory_bytes
    find(measure=False, validate=1, memory=memory, cluster="cpu")
    return 0.0


@pytest.mark.parametrize(
    ("memory", "what"),
    [
        ("sums", "no strategy on 2 devices needs"),
        ("simulated", "no point of the frontier on 2 devices has a simulated peak of"),
    ],
)
def test_the_limit_of_planning_follows_validation(memory: str, what: str) -> None:
    with pytest.raises(RankError, match=f"{what} at most"):
        run_ranks(2, f"{HERE}:limit_after_validation", memory)


def plans_of_a_tight_device(
    strategies: int,
) -> tuple[float, float, float, list[float]]:
    """The memory of a device on which only the fastest point just fits; what is picked there,
    before and after sums turned out to be half of what steps take; and the memory of the
    points among which that is, whose times are at the level of what was run."""
    know_nothing()
    Training.times = lambda *_, **__: StepTimes(1.0, 0.0, 0.0)
    Training.peak_bytes = lambda training, *_: 2.0 * plan_of(training).memory_bytes
    fastest = find(measure=False, memory="sums").memory_bytes
    num_bytes = int(fastest / 0.85)
    cluster = load_cluster("cpu")
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=num_bytes))
    before = find(measure=False, memory="sums", cluster=cluster)
    assert before.memory_bytes == fastest
    after = find(measure=False, memory="sums", cluster=cluster, validate=strategies)
    return num_bytes, fastest, after.memory_bytes, [memory for memory, _ in after.frontier]


@pytest.mark.parametrize("strategies", [10, True])
def test_validation_sets_the_limit_of_planning(strategies: int) -> None:
    first, second = run_ranks(2, f"{HERE}:plans_of_a_tight_device", strategies)
    assert first == second
    num_bytes, before, after, points = first
    assert after == max(memory for memory in points if memory <= num_bytes / 2)
    assert max(points) > num_bytes / 2
    assert after < before


def meta_inputs(_: None) -> str:
    model, args = mlp()
    with pytest.raises(TensorOptError) as caught:
        tensoropt_torch.validate(
            model.to("meta"), (args[0].to("meta"),), loss_fn=sum_of, measure=False
        )
    return str(caught.value)


def nothing_to_validate(changes: dict[str, int]) -> str:
    model, args = mlp()
    options = ValidationOptions(**changes)
    with pytest.raises(TensorOptError) as caught:
        tensoropt_torch.validate(model, args, loss_fn=sum_of, measure=False, options=options)
    return str(caught.value)


def test_a_validation_runs_something() -> None:
    (message,) = set(run_ranks(2, f"{HERE}:nothing_to_validate", {"passes": 0}))
    assert "20 strategies of 5 steps in 0 passes" in message
    assert "at least 1 of each" in message


def test_meta_inputs_cannot_be_validated() -> None:
    for message in run_ranks(2, f"{HERE}:meta_inputs"):
        assert "give real tensors" in message


def test_validation_needs_a_process_group() -> None:
    model, args = mlp()
    with pytest.raises(TensorOptError, match=r"find_strategy\(validate=...\) needs a"):
        tensoropt_torch.find_strategy(model, args, cluster="cpu", num_devices=2, validate=True)
