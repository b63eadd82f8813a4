"""Borders of blocks against slices of the whole tensor."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F

from tensoropt_torch.runtime.groups import AxisGroups
from tests import operators
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_halo"


def whole_with_borders(
    whole: torch.Tensor, dim: int, low: int, high: int, fill: float
) -> list[torch.Tensor]:
    """What every rank has to get."""
    world = dist.get_world_size()
    size = whole.shape[dim] // world
    padding = [0] * (2 * (whole.ndim - 1 - dim)) + [low, max(high, 0)]
    padded = F.pad(whole, padding, value=fill)
    return [padded.narrow(dim, rank * size, low + size + high) for rank in range(world)]


def check_random_cases(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    world = AxisGroups((dist.get_world_size(),))
    world.create([1])
    rank = dist.get_rank()
    for case in range(20):
        size = draw.randint(2, 4)
        low, high = draw.randint(0, size), draw.randint(-1, size)
        ndim = draw.randint(1, 4)
        dim = draw.randrange(ndim)
        shape = [draw.randint(1, 3) for _ in range(ndim)]
        shape[dim] = size * dist.get_world_size()
        what = f"seed {seed}, case {case}: {shape}, dim {dim}, low {low}, high {high}"
        whole = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        expected = whole_with_borders(whole, dim, low, high, fill=-7.0)
        incoming = [torch.randn_like(part) for part in expected]
        torch.autograd.backward(expected, incoming)
        part = whole.detach().chunk(dist.get_world_size(), dim)[rank].requires_grad_()
        got = operators.halo_exchange(part, dim, low, high, -7.0, world.name(1))
        got.backward(incoming[rank])
        assert torch.equal(got, expected[rank]), what
        assert whole.grad is not None and part.grad is not None
        own = whole.grad.chunk(dist.get_world_size(), dim)[rank]
        torch.testing.assert_close(part.grad, own, msg=what)
        shape_only = operators.halo_exchange(part.to("meta"), dim, low, high, 0.0, world.name(1))
        assert shape_only.shape == got.shape, what


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_borders_and_their_gradients_equal_slices_of_the_whole(world_size: int) -> None:
    run_ranks(world_size, f"{HERE}:check_random_cases", 11 + world_size, 60)


def error_of_long_border(_: None) -> str:
    world = AxisGroups((dist.get_world_size(),))
    world.create([1])
    try:
        operators.halo_exchange(torch.zeros(4, 2), 1, 3, 0, 0.0, world.name(1))
    except ValueError as error:
        return str(error)
    return "no error"


def test_a_border_longer_than_a_block_is_an_error() -> None:
    for message in run_ranks(2, f"{HERE}:error_of_long_border", None, 60):
        assert "low 3" in message
        assert "2 entries" in message
