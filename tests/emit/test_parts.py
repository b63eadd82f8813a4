"""The parts of ranks are those that PyTorch's distributed tensors have."""

from __future__ import annotations

import random
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from tensoropt_torch.emit.parts import part_of

SIZES = (2, 3, 2)


def placements_of(seed: int) -> list[Placement]:
    choose = random.Random(seed)
    return [choose.choice([Replicate(), Shard(0), Shard(1)]) for _ in SIZES]


@pytest.mark.parametrize("seed", range(30))
def test_parts_are_those_of_pytorch(seed: int) -> None:
    placements = placements_of(seed)
    print(seed, placements)
    shape = torch.Size((24, 12, 5))
    for coordinate in product(*map(range, SIZES)):
        mesh = Mock(get_coordinate=lambda c=coordinate: list(c), size=SIZES.__getitem__)
        local, offset = _compute_local_shape_and_global_offset(
            shape, SIZES, list(coordinate).__getitem__, placements
        )
        expected = [slice(o, o + size) for o, size in zip(offset, local, strict=True)]
        assert list(part_of(shape, mesh, placements)) == expected
