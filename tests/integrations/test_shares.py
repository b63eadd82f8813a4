"""How loops call their models, and what ranks have to have alike."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import TensorOptError
from tensoropt_torch.integrations.early_optimizers import use_parameters_of
from tensoropt_torch.integrations.shares import CallArguments, first_call, first_of
from tests.distributed.harness import run_ranks

HERE = "tests.integrations.test_shares"


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        self.count += 1
        return x if y is None else x + y


def test_the_first_call_is_found_and_computes_nothing() -> None:
    module, x = Counting(), torch.ones(2)
    call = first_call(module, lambda: module(x * 2, y=x))
    assert torch.equal(call.args[0], x * 2) and call.kwargs["y"] is x
    assert module.count == 0
    assert torch.equal(module(x), x) and module.count == 1  # it is itself again


def test_a_forward_that_was_replaced_is_there_again() -> None:
    module = Counting()
    module.forward = lambda x: x + 1
    first_call(module, lambda: module(1))
    assert module(1) == 2


def test_errors_of_the_step_and_steps_without_a_call_are_told() -> None:
    module = Counting()
    with pytest.raises(TensorOptError, match="does not call Counting"):
        first_call(module, lambda: None)
    with pytest.raises(ZeroDivisionError):
        first_call(module, lambda: 1 // 0)
    assert "forward" not in module.__dict__


def test_the_first_batch_takes_no_random_numbers() -> None:
    def batches():  # type: ignore[no-untyped-def]
        yield random.random(), np.random.rand(), torch.rand(())

    first, again = first_of(batches()), next(batches())
    assert first == again
    with pytest.raises(TensorOptError, match="no batch"):
        first_of([])


def batch_of_all(sizes: list[int]) -> list[list[int]]:
    x = torch.ones(sizes[dist.get_rank()], 3)
    table, hidden = torch.full((5,), 7.0), x[None]
    call = CallArguments((x, hidden), {"count": torch.tensor(4.0), "name": "a", "table": table})
    whole = call.of_all_ranks([0, 1, None, None, None])
    assert whole.kwargs["name"] == "a" and torch.equal(whole.kwargs["table"], table)
    return [list(leaf.shape) for leaf in (*whole.args, whole.kwargs["count"])]


def test_a_batch_of_all_ranks_has_the_rows_of_all() -> None:
    assert run_ranks(2, f"{HERE}:batch_of_all", [4, 4], 60) == [[[8, 3], [1, 8, 3], []]] * 2
    with pytest.raises(AssertionError, match=r"rank 0 has \[\(4, 3\), .* rank 1 has \[\(5, 3\)"):
        run_ranks(2, f"{HERE}:batch_of_all", [4, 5], 60)


def test_optimizers_get_the_parameters_of_the_same_names() -> None:
    model, parallel = nn.Linear(2, 2), nn.Linear(2, 2)
    groups = [{"params": [model.bias], "lr": 0.5}, {"params": [model.weight]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    use_parameters_of(parallel, model, optimizer)
    assert [g["params"][0] for g in optimizer.param_groups] == [parallel.bias, parallel.weight]
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.1]
    parallel.weight.sum().backward()
    optimizer.step()
    with pytest.raises(TensorOptError, match="has made steps already"):
        use_parameters_of(parallel, model, optimizer)
    with pytest.raises(TensorOptError, match="2 parameters of another model"):
        use_parameters_of(parallel, model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
