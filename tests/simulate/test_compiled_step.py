"""Simulated peaks of compiled steps, against counted lives of small graphs, and real processes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

from tensoropt_torch import api
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate import StepSettings, simulate_step
from tensoropt_torch.simulate.compiled_memory import Event, GraphMemory
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.staging import find_stages
from tests.distributed.harness import run_ranks

HERE = "tests.simulate.test_compiled_step"
KIB = 2**10


class Layers(nn.Module):
    """Products with pointwise calls between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))
        self.norm = nn.LayerNorm(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 128) to a number."""
        for layer in self.layers:
            x = x + nn.functional.silu(layer(self.norm(x)))
        return x.square().mean()


def example() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Layers(), torch.randn(512, 128)


def plan_of(devices: int, seed: int = 0, micro_batches: int = 1) -> Plan:
    model, x = example()
    captured = micro_batched(capture(model, (x,)), micro_batches)
    task = PlanningTask(captured, load_cluster("cpu"), inputs="replicated")
    settings = task.settings(devices)
    space = make_space(captured, settings)
    return Plan.of(space, settings, captured, space.random_strategy(seed, 0.5))


def events_of(function: Any, *args: torch.Tensor) -> list[Event]:
    """Of what it calls, on inputs that are there before and after."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function)(*args).graph
    return list(GraphMemory(graph).events(lambda placeholder: False))


def peak_of(events: list[Event]) -> int:
    alive: dict[fx.Node, int] = {}
    peak = 0
    for event in events:
        if event.takes_over is not None:
            alive[event.node] = alive.pop(event.takes_over)
        elif event.made_bytes:
            alive[event.node] = event.made_bytes
        peak = max(peak, sum(alive.values()))
        for node in event.freed:
            del alive[node]
    return peak


def test_what_only_pointwise_calls_read_has_no_memory() -> None:
    x = torch.randn(16, 16)  # 1 KiB
    assert peak_of(events_of(lambda x: x.sin().cos().exp(), x)) == KIB
    # Both products, then the sum, which takes over one of them.
    assert peak_of(events_of(lambda x: (x @ x).sin() + (x @ x.t()).cos(), x)) == 2 * KIB
    # What a product reads has memory; it is freed when the product is there.
    assert peak_of(events_of(lambda x: x.sin() @ x, x)) == 2 * KIB
    assert peak_of(events_of(lambda x: x.sin().t() @ x.cos() @ x, x)) == 3 * KIB


def test_memory_is_freed_after_the_last_view_is_read() -> None:
    x = torch.randn(16, 16)

    def two_views(x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        first, second = y.t() @ x, y.view(256)
        return first @ second.view(16, 16)

    events = events_of(two_views, x)
    assert peak_of(events) == 3 * KIB
    assert [len(event.freed) for event in events] == [0, 0, 2]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_peaks_of_compiled_steps_are_told_without_processes(devices: int) -> None:
    plan = plan_of(devices)
    assert plan.captured is not None
    plain = simulate_step(plan, plan.captured)
    compiled = simulate_step(plan, plan.captured, StepSettings(compiled=True))
    for name in ("parameters", "optimizer state"):
        assert compiled.categories[name] == plain.categories[name]
    assert compiled.peak_bytes <= 1.05 * plain.peak_bytes
    assert sum(compiled.categories.values()) == compiled.peak_bytes


def test_plans_in_micro_batches_and_stages_are_refused() -> None:
    model, x = example()
    plan = api.find_strategy(model, (x,), cluster="cpu", num_devices=2)
    assert api.simulate_memory(model, plan, (x,), compiled=True).peak_bytes > 0
    staged = find_stages(model, (x,), stages=2, micro_batches=2, num_devices=2, cluster="cpu")
    with pytest.raises(TensorOptError, match="compiled=True is not for plans in stages"):
        api.simulate_memory(model, staged, (x,), compiled=True)
    split = plan_of(2, micro_batches=2)
    assert split.captured is not None
    with pytest.raises(TensorOptError, match="in 2 micro-batches"):
        simulate_step(split, split.captured, StepSettings(compiled=True))


def peaks(seed: int) -> tuple[int, int]:
    """Measured on this rank, and simulated of it."""
    model, x = example()
    plan = plan_of(torch.distributed.get_world_size(), seed)
    assert plan.captured is not None
    module = api.parallelize(copy.deepcopy(model), plan, (x,), compile=True)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)

    def step() -> None:
        torch.autograd.backward(module(x))
        optimizer.step()
        optimizer.zero_grad()

    measured = measure_peak_bytes(module, optimizer, step, x)
    settings = StepSettings(rank=torch.distributed.get_rank(), compiled=True)
    return measured, simulate_step(plan, plan.captured, settings).peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("world", [1, 2])
def test_peaks_of_processes_are_those_measured(world: int, seed: int) -> None:
    for measured, simulated in run_ranks(world, f"{HERE}:peaks", seed, 300):
        assert simulated == pytest.approx(measured, rel=0.05)
