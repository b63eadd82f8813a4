"""Sums of few and of many bytes over the ranks."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime import ops
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.runtime.test_sums"
MOST_EXCHANGED_BYTES = 512 * 1024  # that a rank receives, in csrc/runtime/collectives.cc


def numbers_of(rank: int, count: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)


def averages(seed: int) -> list[list[float]]:
    """Of buffers that all ranks have changed, of so many bytes that they are exchanged, and of
    more; each as all ranks have it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD.group_name
    found = []
    for dtype in (torch.float32, torch.float64):
        limit = MOST_EXCHANGED_BYTES // ranks // dtype.itemsize
        for count in (1, 7, limit, limit + 1):
            buffer = numbers_of(rank, count, dtype, seed)
            ops.reset_collective_counts()
            OPS.forward_sums([], [buffer], [0], [count], [ranks], group)
            counts = ops.collective_counts()
            assert (counts.all_reduce, counts.collectives) == (1, 1)
            parts = [numbers_of(other, count, dtype, seed) for other in range(ranks)]
            torch.testing.assert_close(buffer, torch.stack(parts).mean(0))
            found.append(buffer[-5:].tolist())
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_have_the_same_sums_to_the_last_bit(ranks: int) -> None:
    seed = random.randrange(1000)
    print(f"seed {seed}")
    first, *others = run_ranks(ranks, f"{HERE}:averages", seed)
    assert all(other == first for other in others)


def out_of_range(_: None) -> str:
    """Of what was looked up on ranks, the largest: one of them alone has it."""
    number = 9 if dist.get_rank() == dist.get_world_size() - 1 else 3
    how_many = torch.ones((), dtype=torch.float64)
    group = dist.group.WORLD.group_name
    with pytest.raises(IndexError) as error:
        OPS.check_lookups(how_many, [torch.tensor([number, ~0])], [0], [8], ["op"], group)
    return str(error.value).splitlines()[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_have_the_largest_number(ranks: int) -> None:
    for message in run_ranks(ranks, f"{HERE}:out_of_range"):
        assert message.startswith("op: index out of range: it looks up 9, but")
