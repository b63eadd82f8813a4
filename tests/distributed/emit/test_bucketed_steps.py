"""Compiled steps with buckets of collectives compute what one process does where more follows from
a sum: what reads a buffer that the step moves on, and the gradient of a table."""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch
from torch import fx, nn

from tensoropt_torch import api
from tensoropt_torch.emit import ahead
from tensoropt_torch.module.parallel_module import programs_of
from tensoropt_torch.runtime.functional import Collective
from tests.distributed.emit.test_whole import data_parallel, full
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.emit.test_bucketed_steps"
SUM = torch.ops._c10d_functional.all_reduce.default


class Averaged(nn.Module):
    """Two sums of all rows, one of them with a buffer that is moved on in the same step."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("steps", torch.ones(8, dtype=dtype))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.up(x)
        scaled = h.detach().sum(0) * self.steps
        squares = h.detach().square().sum(0)
        loss = nn.functional.mse_loss(self.down(h), y)
        self.steps.add_(1)
        return loss, scaled, squares


class Positions(nn.Module):
    """Has a table of positions, whose gradient is made of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.down = nn.Embedding(12, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        places = self.table(torch.arange(x.shape[1]))
        return (nn.functional.mse_loss(self.down((x + places).tanh()), y),)


def cases() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    rows = (torch.randn(8, 8), torch.randn(8, 8))
    return {
        "a buffer": (Averaged(torch.float32), rows),
        "a buffer of integers": (Averaged(torch.int32), rows),
        "positions": (Positions(), (torch.randn(8, 5, 8), torch.randn(8, 5, 4))),
    }


def sums_in(module: fx.GraphModule) -> int:
    return len(module.graph.find_nodes(op="call_function", target=SUM))


def beside_one_process(name: str) -> tuple[list[str], list[int]]:
    """What differs after three steps, and how many sums forward and backward have."""
    model, inputs = cases()[name]
    one = copy.deepcopy(model)
    plan = data_parallel(model, inputs, torch.distributed.get_world_size())
    module = api.parallelize(model, plan, compile=True)
    wrong: list[str] = []
    sums: list[int] = []
    see = ahead.Backend.see

    def noted(self: ahead.Backend, graph: fx.GraphModule) -> list[Collective]:
        found = see(self, graph)
        sums.append(sums_in(graph))
        return found

    with patch.object(ahead.Backend, "see", noted):
        for step in range(3):
            traces = []
            for trained in (module, one):
                trained.zero_grad()
                outputs = trained(*inputs)
                torch.autograd.backward(outputs[0])
                gradients = {n: p.grad for n, p in trained.named_parameters()}
                traces.append({**dict(enumerate(outputs)), **gradients})
            wrong += [
                f"step {step}: {key}"
                for key, expected in traces[1].items()
                if not torch.allclose(full(traces[0][key]), full(expected), rtol=1e-4, atol=1e-5)
            ]
    assert programs_of(module).base.is_compiled_whole
    return wrong, sums


@pytest.mark.parametrize("name", ["a buffer", "a buffer of integers"])
def test_sums_are_used_with_what_a_buffer_was(name: str) -> None:
    for wrong, _ in run_ranks(2, f"{HERE}:beside_one_process", name):
        assert wrong == []


def test_the_gradient_of_a_table_is_summed_with_others() -> None:
    for wrong, sums in run_ranks(2, f"{HERE}:beside_one_process", "positions"):
        assert wrong == []
        assert sums == [1, 1]
