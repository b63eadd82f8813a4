"""Measured peaks: on tensors whose bytes are known, and against simulated ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.memory.job import random_plan
from benchmarks.memory.models import make
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.measure.runs.training import OPTIMIZERS, Training
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.simulate import StepSettings, simulate_step
from tests.distributed.harness import run_ranks

HERE = "tests.measure.runs.test_memory"
WIDTH = 1000


class Vector(nn.Module):
    """A parameter of WIDTH numbers, and a buffer of as many."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("held", torch.ones(WIDTH))


def peak_of(step: Callable[[], Any], module: nn.Module, inputs: Any = ()) -> float:
    """In vectors of WIDTH numbers."""
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.9)
    return measure_peak_bytes(module, optimizer, step, inputs) / (4 * WIDTH)


def test_held_tensors_and_the_most_at_one_moment_are_counted() -> None:
    module = Vector()

    def step() -> None:
        first = torch.ones(3 * WIDTH)
        del first
        second, third = torch.ones(2 * WIDTH), torch.ones(2 * WIDTH)
        del second, third

    assert peak_of(step, module) == 2 + 4


def test_what_kernels_need_inside_is_counted() -> None:
    """A mean loss is computed for every element first, twice as much as is needed; only
    a number comes out."""
    x, y = torch.ones(2, WIDTH)
    peak = peak_of(lambda: nn.functional.mse_loss(x, y), Vector())
    assert peak == pytest.approx(2 + 2, abs=0.01)


def test_shared_memory_counts_once_and_a_slice_as_a_slice() -> None:
    module = Vector()
    data = torch.ones(5 * WIDTH)
    batch = {"all": data[:WIDTH], "same": data[:WIDTH], "next": data[WIDTH : 2 * WIDTH]}
    assert peak_of(lambda: None, module, batch) == 2 + 3
    assert peak_of(lambda: None, module, [module.weight, module.held, data]) == 2 + 5


def test_states_that_the_first_step_makes_are_counted() -> None:
    module = Vector()
    optimizer = torch.optim.SGD(module.parameters(), momentum=0.9)

    def step() -> None:
        module.weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    counted = [measure_peak_bytes(module, optimizer, step) / (4 * WIDTH) for _ in range(2)]
    # Parameter, buffer, momentum and gradient; and some single numbers.
    assert counted == pytest.approx([4, 4], abs=0.01)


def test_counting_ends_and_memory_that_was_counted_can_be_freed_later() -> None:
    kept: list[torch.Tensor] = []
    assert peak_of(lambda: kept.append(torch.ones(WIDTH)), Vector()) == 2 + 2
    kept.clear()
    assert peak_of(lambda: None, Vector()) == 2


def peaks(payload: tuple[str, tuple[int, ...]]) -> list[tuple[float, int]]:
    """Of random strategies, on the rank that needs most: measured, and simulated."""
    name, seeds = payload
    model, args = make(name)
    captured = capture(model, args)
    ranks = range(dist.get_world_size())
    context = RankContext.make((len(ranks),), torch.device("cpu"))
    rows = []
    for seed in seeds:
        plan = random_plan(captured, len(ranks), seed)
        simulated = [
            simulate_step(plan, captured, StepSettings(rank=rank)).peak_bytes for rank in ranks
        ]
        training = Training.of(model, plan, context, OPTIMIZERS["adamw"], (args, {}))
        rows.append((training.peak_bytes(args), max(simulated)))
    return rows


@pytest.mark.parametrize(("name", "seeds"), [("mlp", (0, 1, 2, 3)), ("lstm", (0, 1))])
def test_measured_peaks_are_those_simulated(name: str, seeds: tuple[int, ...]) -> None:
    """To the byte but for small gradients that a recorded step does not copy, as autograd does:
    both follow every allocation, one of real kernels, the other of a step without memory."""
    found, other = run_ranks(2, f"{HERE}:peaks", (name, seeds), 300)
    assert found == other
    for measured, simulated in found:
        assert 0.9999 * simulated <= measured <= simulated
