"""Causal attention whose query rows are split, against the whole of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.groups import AxisGroups
from tests import operators
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.rules.test_attention"
SHAPES = {"alike": (4, 4), "grouped": (4, 2), "one group": (4, 1)}
ROWS = (1, 2, 5, 8)  # of each rank


class CountScores(TorchDispatchMode):
    """How many scores kernels of attention compute."""

    scores = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if "scaled_dot_product" in func._schema.name and "backward" not in func._schema.name:
            query, key = args[:2]
            self.scores += query.shape[-2] * key.shape[-2]
        return func(*args, **(kwargs or {}))


def whole_group() -> AxisGroups:
    groups = AxisGroups((dist.get_world_size(),))
    groups.create([1])
    return groups


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def compare(heads: tuple[int, int]) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    groups = whole_group()
    group = groups.name(1)
    for rows in ROWS:
        query = drawn(1, 2, heads[0], rows * world, 3).requires_grad_()
        key, value = (drawn(seed, 2, heads[1], rows * world, 3).requires_grad_() for seed in (2, 3))
        expected = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=0.4, enable_gqa=True
        )
        incoming = drawn(4, *expected.shape)
        expected.backward(incoming)
        block = query.detach().chunk(world, -2)[rank].requires_grad_()
        keys, values = (t.detach().clone().requires_grad_() for t in (key, value))
        ops.reset_collective_counts()
        found = operators.balanced_causal_attention(block, keys, values, group, 0.0, 0.4, True)
        found.backward(incoming.chunk(world, -2)[rank])
        assert ops.collective_counts().all_to_all == (4 if rows > 1 else 0)
        torch.testing.assert_close(found, expected.chunk(world, -2)[rank])
        assert query.grad is not None
        torch.testing.assert_close(block.grad, query.grad.chunk(world, -2)[rank])
        for own, whole in ((keys, key), (values, value)):
            assert own.grad is not None
            dist.all_reduce(own.grad)
            torch.testing.assert_close(own.grad, whole.grad)


@pytest.mark.parametrize("heads", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_blocks_are_those_of_the_whole(world_size: int, heads: tuple[int, int]) -> None:
    run_ranks(world_size, f"{HERE}:compare", heads)


def scores(rows: int) -> int:
    """Of this rank."""
    world, groups = dist.get_world_size(), whole_group()
    query = drawn(1, 1, 2, rows, 8, dtype=torch.float32)
    key = drawn(2, 1, 2, rows * world, 8, dtype=torch.float32)
    with CountScores() as counted:
        operators.balanced_causal_attention(query, key, key, groups.name(1))
    return counted.scores


def test_ranks_have_equally_much_to_compute() -> None:
    rows, world = 8, 3
    blocks = 2 * world  # halves of a rank's rows; the last one sees the keys of all
    average = sum(range(1, blocks + 1)) / blocks * (rows // 2) ** 2
    assert run_ranks(world, f"{HERE}:scores", rows) == [2 * average] * world


def dropped(_: None) -> None:
    """The numbers that are drawn are the same in backward, and others by seed. The result is
    linear in the values, so its gradient says what was dropped."""
    groups = whole_group()
    group, world = groups.name(1), dist.get_world_size()
    query, key = drawn(1, 1, 2, 4, 3), drawn(2, 1, 2, 4 * world, 3)
    value = drawn(3, 1, 2, 4 * world, 3).requires_grad_()

    def attend(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return operators.balanced_causal_attention(query, key, value, group, 0.5)

    found = attend(0)
    incoming = drawn(4, *found.shape)
    (gradient,) = torch.autograd.grad(found, value, incoming)
    sums = torch.stack([(found * incoming).sum(), (value * gradient).sum()]).detach()
    dist.all_reduce(sums)  # a rank has gradients of rows of others
    torch.testing.assert_close(sums[0], sums[1])
    assert torch.equal(attend(0), found)
    assert not torch.equal(attend(1), found)
    mean = torch.stack([attend(seed).detach() for seed in range(2000)]).mean(0)
    whole = operators.balanced_causal_attention(query, key, value, group)
    torch.testing.assert_close(mean, whole, rtol=0, atol=0.15)


def test_dropout_drops_alike_in_backward() -> None:
    run_ranks(2, f"{HERE}:dropped")
