"""Calls of operators as strategies make them, run and timed one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.measure.machine.clock import SharedClock
from tensoropt_torch.measure.runs import operators
from tensoropt_torch.measure.runs.operators import OperatorProfiler, Pick, picks_of
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.op_records import work_record
from tensoropt_torch.space.search_space import make_space
from tests.distributed.models import make

CPU = torch.device("cpu")
DEVICES = 4
SEEDS = range(4)


def space_of(captured: CapturedModel) -> _C.SearchSpace:
    task = PlanningTask(captured, load_cluster("cpu"))
    return make_space(captured, task.settings(DEVICES))


def captured_model(name: str) -> CapturedModel:
    case = make(name, torch.float32)
    return capture(case.model, case.args, **case.keywords)


def profiler_of(captured: CapturedModel, space: _C.SearchSpace) -> OperatorProfiler:
    return OperatorProfiler(captured, space, torch.device("cpu"), lambda axes: f"group {axes}")


def alone(space: _C.SearchSpace, picks: list[Pick]) -> list[Pick]:
    """Those that need no other process."""
    return [p for p in picks if not any(space.local_call(p.node, p.config).form.groups)]


@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm", "transformer", "llama"])
def test_every_call_of_random_strategies_runs(name: str) -> None:
    captured = captured_model(name)
    space = space_of(captured)
    picks = alone(space, picks_of(space, [space.random_strategy(s) for s in SEEDS]))
    found = profiler_of(captured, space).measure(picks, 60.0)
    assert found.failed == []
    assert [sample.key for sample in found.samples] == [pick.key for pick in picks]
    assert all(sample.forward_s > 0 for sample in found.samples)
    trained = [s for s in found.samples if s.work[5] and not s.work[6]]
    assert trained and all(sample.backward_s > 0 for sample in trained)


def test_a_call_without_its_group_is_reported() -> None:
    captured = captured_model("lstm")
    space = space_of(captured)
    picks = picks_of(space, [space.random_strategy(s) for s in SEEDS])
    others = [pick for pick in picks if pick not in alone(space, picks)]
    assert others
    found = profiler_of(captured, space).measure(others, 10.0)
    assert [key for key, _ in found.failed] == [pick.key for pick in others]
    assert found.samples == []


def test_times_leave_out_what_autograd_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock on which every look takes 1 s more than the one before."""
    captured = captured_model("mlp")
    space = space_of(captured)
    picks = picks_of(space, [space.random_strategy(0)])
    linear = next(pick for pick in picks if "aten.linear" in pick.key)
    profiler = profiler_of(captured, space)
    ticks = itertools.count()
    monkeypatch.setattr(SharedClock, "now", lambda self: 3.0 * next(ticks))
    monkeypatch.setattr(OperatorProfiler, "_engine_time", lambda self: 1.0)
    monkeypatch.setattr(profiler._clock, "elapsed_s", lambda: 0.0)
    (sample,) = profiler.measure([linear], 1.0).samples
    assert sample.forward_s == pytest.approx(3.0)
    assert sample.backward_s == pytest.approx(2.0)


def test_the_budget_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = captured_model("mlp")
    space = space_of(captured)
    picks = picks_of(space, [space.random_strategy(0)])
    profiler = profiler_of(captured, space)
    seconds = itertools.count()
    monkeypatch.setattr(profiler._clock, "elapsed_s", lambda: float(next(seconds)))
    found = profiler.measure(picks, 2.0)
    assert [sample.key for sample in found.samples] == [pick.key for pick in picks[:2]]


def test_calls_that_take_long_are_repeated_less(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = captured_model("mlp")
    space = space_of(captured)
    picks = picks_of(space, [space.random_strategy(0)])
    linear = next(pick for pick in picks if "aten.linear" in pick.key)
    repeats = []
    run_once = operators.TimedCall.__call__

    def counted(run: operators.TimedCall) -> tuple[float, float]:
        repeats.append(linear)
        return run_once(run)

    monkeypatch.setattr(operators.TimedCall, "__call__", counted)
    for budget_s, least, most in ((1e-6, 3, 3), (60.0, 8, 33)):
        repeats.clear()
        (sample,) = profiler_of(captured, space).measure([linear], budget_s).samples
        assert least <= len(repeats) <= most
        assert sample.forward_s > 0 and sample.backward_s > 0


def test_picks_are_the_distinct_calls_largest_first() -> None:
    captured = captured_model("gpt")
    space = space_of(captured)
    strategies = [space.random_strategy(s) for s in SEEDS]
    picks = picks_of(space, strategies)
    rows = [row for s in strategies for row in space.estimates(s)]
    assert {pick.key for pick in picks} == {row.key for row in rows}
    assert len({pick.key for pick in picks}) == len(picks)
    weight = {pick.key: sum(row.time_s for row in rows if row.key == pick.key) for pick in picks}
    ordered = [weight[pick.key] for pick in picks]
    assert ordered == pytest.approx(sorted(ordered, reverse=True))
    for pick in picks:
        assert space.local_call(pick.node, pick.config).key == pick.key


class Transposed(nn.Module):
    """Multiplies with a tensor whose dims lie in another order."""

    def __init__(self, transpose: bool) -> None:
        super().__init__()
        self.transpose = transpose
        self.weight = nn.Parameter(torch.ones(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.weight
        return torch.tanh(scaled.t() if self.transpose else scaled).sum()


def keys_of(module: nn.Module) -> list[str]:
    captured = capture(module, (torch.ones(8, 8),))
    space = space_of(captured)
    return [row.key for row in space.estimates(space.random_strategy(0))]


def test_the_order_in_memory_is_part_of_the_key() -> None:
    (plain,) = [key for key in keys_of(Transposed(False)) if "tanh" in key]
    (other,) = [key for key in keys_of(Transposed(True)) if "tanh" in key]
    assert "1,0" in other and "1,0" not in plain


def operand(shape: list[int], dtype: str, requires_grad: bool) -> Any:
    return SimpleNamespace(shape=shape, dtype=dtype, requires_grad=requires_grad)


def test_operands_are_made_in_that_order() -> None:
    tensor = operators._operand(operand([2, 3, 4], "float32", True), "0,2,1", 5, CPU)
    assert tensor.shape == (2, 3, 4)
    assert tensor.stride() == (12, 1, 3)
    assert tensor.requires_grad and tensor.is_leaf
    index = operators._operand(operand([100], "int64", False), "", 5, CPU)
    assert index.dtype == torch.int64
    assert int(index.min()) >= 0 and int(index.max()) < 5


def test_measured_times_are_the_costs_of_strategies() -> None:
    """The times of all calls, made up, against the time that the core gives."""
    captured = captured_model("gpt")
    task = PlanningTask(captured, load_cluster("cpu"))
    space = space_of(captured)
    strategies = [space.random_strategy(s) for s in SEEDS]
    picks = picks_of(space, strategies)
    works = {p.key: space.local_call(p.node, p.config) for p in picks}
    operators_ = tuple(
        (key, call.family, work_record(call.work), 1.0 + i, 0.5)
        for i, (key, call) in enumerate(sorted(works.items()))
    )
    seconds = {record[0]: record[3] + record[4] for record in operators_}
    measured = replace(task, operators=operators_, measured_on=DEVICES)
    other = make_space(captured, measured.settings(DEVICES))
    updates = {
        round(space.compute_time(s) - sum(r.time_s for r in space.estimates(s)), 9)
        for s in strategies
    }
    assert all(update >= 0 for update in updates)
    for strategy in strategies:
        rows = space.estimates(strategy)
        backward = {r.key: works[r.key].work.backward for r in rows}
        expected = sum(seconds[r.key] - (0 if backward[r.key] else 0.5) for r in rows)
        expected += space.compute_time(strategy) - sum(row.time_s for row in rows)
        assert other.compute_time(strategy) == pytest.approx(expected, rel=1e-6)
        assert other.network_time(strategy) == space.network_time(strategy)


def test_all_ranks_make_up_the_same_operands() -> None:
    """Whatever their generators have drawn before, which goes on undisturbed."""
    captured = captured_model("mlp")
    space = space_of(captured)
    pick = next(p for p in picks_of(space, [space.random_strategy(0)]) if "linear" in p.key)
    profiler = profiler_of(captured, space)
    leaves = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        run = profiler.runnable(pick, lambda: 0.0)
        leaves.append(run._leaves)
        drawn = torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(drawn, torch.rand(3))
    assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))
