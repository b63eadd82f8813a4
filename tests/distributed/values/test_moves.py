"""Tensors that go from any layout to any other one."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tensoropt_torch.values.moves import Move, Spread, make_moves, windows
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.values.test_moves"
DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64)
BUCKETS = (256, 4000, 10**6)  # bytes
CASES = 40


class Held:
    """A tensor of which the rank has a part, and its move."""

    def __init__(self, whole: torch.Tensor, before: Spread, after: Spread) -> None:
        self.local = part_of(whole, before)
        self.expected = part_of(whole, after)
        shape = tuple(whole.shape)
        self.move = Move(shape, whole.dtype, before, after, lambda: self.local, self.put)

    def put(self, local: torch.Tensor) -> None:
        self.local = local


def part_of(whole: torch.Tensor, spread: Spread) -> torch.Tensor:
    pieces = [whole[part] for part in spread.parts(whole.shape, dist.get_rank())]
    dim = spread.dim_of_blocks
    return pieces[0].clone() if dim is None else torch.cat(pieces, dim)


def random_spread(rng: random.Random, shape: tuple[int, ...]) -> Spread:
    ranks = dist.get_world_size()
    sizes = rng.choice([(), (ranks,), (2, ranks // 2)])
    own = [Replicate(), *map(Shard, range(len(shape)))]
    if len(sizes) == 2 and shape and shape[0] and shape[0] % 24 == 0 and rng.random() < 0.5:
        rest = [p for p in own if p != Shard(0)]
        return Spread(sizes, (_StridedShard(0, split_factor=3), rng.choice(rest)))
    return Spread(sizes, tuple(rng.choice(own) for _ in sizes))


def random_tensors(rng: random.Random) -> Iterator[Held]:
    for _ in range(rng.randint(1, 8)):
        shape = tuple(rng.choice([0, 1, 3, 4, 7, 24]) for _ in range(rng.randint(0, 3)))
        numbers = [rng.randint(0, 100) for _ in range(math.prod(shape))]
        whole = torch.tensor(numbers).reshape(shape).to(rng.choice(DTYPES))
        yield Held(whole, random_spread(rng, shape), random_spread(rng, shape))


def run_random(seed: int) -> list[str]:
    """Which cases went wrong."""
    wrong = []
    for case in range(seed, seed + CASES):
        rng = random.Random(case)
        held, bucket = list(random_tensors(rng)), rng.choice(BUCKETS)
        made = make_moves([one.move for one in held], torch.device("cpu"), bucket)
        for one in held:
            if not torch.equal(one.local, one.expected):
                wrong.append(f"case {case}: {one.move.words}")
        if made.tensors != len(held):
            wrong.append(f"case {case}: {made}")
    return wrong


@pytest.mark.parametrize("ranks", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_random_layouts_on_any_meshes(ranks: int) -> None:
    for wrong in run_ranks(ranks, f"{HERE}:run_random", 0, 90):
        assert wrong == []


def test_windows_are_all_of_a_tensor_once() -> None:
    counts = torch.zeros(7, 5, 3, dtype=torch.int64)
    for window in windows(counts.shape, 6):
        assert counts[window].numel() <= 6
        counts[window] += 1
    assert counts.eq(1).all()
