"""Gradients that compiled steps give to parameters have memory of their own, whatever trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensoropt_torch import api
from tensoropt_torch.config import load_cluster
from tensoropt_torch.emit.compiler import Compile
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.emit.test_own_gradients"
NAMES = ("layer.weight", "layer.bias", "first", "second")


class Added(nn.Module):
    """Two parameters whose gradients are that of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.first, self.second = (nn.Parameter(torch.zeros(4, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x) + self.first + self.second
        return found


def shared(compile: Compile) -> list[tuple[int, str, str]]:
    """Gradients that have memory of another one, by the step; each step trains other parameters."""
    torch.manual_seed(0)
    x = torch.rand(4, 8)
    task = PlanningTask(capture(Added(), (x,)), load_cluster("cpu"))
    (baseline,) = find_baselines(task, 1, ("data parallel",))
    module = api.parallelize(Added(), baseline.plan(0), compile=compile)
    found = []
    steps = (NAMES, NAMES, NAMES[2:], NAMES[1:], NAMES[::2], NAMES)
    for step, trained in enumerate(steps):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained)
        module.zero_grad()
        own = torch.ones(4, 8)
        module(x).backward(own)
        memory = {own.untyped_storage().data_ptr(): "the caller's"}
        for name in trained:
            gradient = module.get_parameter(name).grad
            assert gradient is not None
            where = gradient.to_local().untyped_storage().data_ptr()
            if where in memory:
                found.append((step, name, memory[where]))
            memory[where] = name
    return found


@pytest.mark.parametrize("compile", [False, "aot_eager", True])
def test_no_gradient_has_the_memory_of_another(compile: Compile) -> None:
    assert run_ranks(1, f"{HERE}:shared", compile, 300) == [[]]
