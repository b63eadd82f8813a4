"""Ranks with unequal shares of a batch, under a plan of several micro-batches."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import find_frontier, parallelize
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.calls.test_uneven_micro_batches"


def losses(rows: list[int]) -> list[tuple[float, float]]:
    """In the steps before, with and after these rows, under a plan and of the model as it is."""
    torch.manual_seed(0)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    one = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4)).double()
    x, y = torch.randn(16, 8, dtype=torch.float64), torch.randn(16, 4, dtype=torch.float64)
    loss_fn = nn.MSELoss()
    frontier = find_frontier(
        *(one, (x,)),
        loss_fn=loss_fn,
        targets=(y,),
        inputs="sharded",
        max_micro_batches=2,
        measure=False,
        memory="sums",
    )
    point = next(point for point in frontier if point.micro_batches == 2)
    parallel = parallelize(copy.deepcopy(one), point.plan)
    found = []
    for shares in ([16 // ranks] * ranks, rows, [16 // ranks] * ranks):
        first = sum(shares[:rank])
        own = slice(first, first + shares[rank])
        loss = parallel(x[own], y[own])
        loss.backward()
        expected = loss_fn(one(x[: sum(shares)]), y[: sum(shares)])
        found.append((float(loss), float(expected)))
    return found


@pytest.mark.parametrize("rows", [[4, 8], [3, 3, 3, 4], [2, 2, 4, 4]])
def test_all_of_it_is_computed_on_each(rows: list[int]) -> None:
    """Also where some have as many as before."""
    for found in run_ranks(len(rows), f"{HERE}:losses", rows, 60):
        for got, expected in found:
            assert got == pytest.approx(expected, rel=1e-10)
