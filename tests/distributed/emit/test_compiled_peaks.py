"""Compiled steps need no more memory than those of the plan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.compiled_steps import SMALL, gpt
from tensoropt_torch import api
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.emit.test_compiled_peaks"


ROWS = 4  # of a process, of 128 tokens


def peaks(_: object) -> list[float]:
    """Of steps as they are, and compiled."""
    torch.manual_seed(0)
    world = torch.distributed.get_world_size()
    model, batch = gpt(SMALL, ROWS * world)
    task = PlanningTask(capture(model, batch), load_cluster("cpu"))
    (baseline,) = find_baselines(task, world, ("data parallel",))
    found = []
    for compile in (False, True):
        module = api.parallelize(copy.deepcopy(model), baseline.plan(0), compile=compile)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, foreach=False)

        def step(module: nn.Module = module, optimizer: Any = optimizer) -> None:
            torch.autograd.backward(module(*batch))
            optimizer.step()
            optimizer.zero_grad()

        found.append(float(measure_peak_bytes(module, optimizer, step, batch)))
    return found


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_gpt(world_size: int) -> None:
    """Of 4 layers of width 256."""
    for plain, compiled in run_ranks(world_size, f"{HERE}:peaks", None, 400):
        assert compiled <= plain
