"""The parts of ranks are those that PyTorch's distributed tensors have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import Blocks, capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.values.parts import parts_of, take_part
from tensoropt_torch.values.placements import placements_of
from tests.distributed.models import make

SIZES = (2, 3, 2)


def random_placements(seed: int) -> list[Placement]:
    choose = random.Random(seed)
    return [choose.choice([Replicate(), Shard(0), Shard(1)]) for _ in SIZES]


def meshes(sizes: Sequence[int] = SIZES) -> Iterator[tuple[tuple[int, ...], Mock]]:
    """Of each rank, with its coordinates."""
    for coordinate in product(*map(range, sizes)):
        yield coordinate, Mock(get_coordinate=lambda c=coordinate: list(c), shape=tuple(sizes))


@pytest.mark.parametrize("shape", [(24, 12, 5), (23, 17, 5)], ids=str)  # equal parts, and others
@pytest.mark.parametrize("seed", range(30))
def test_parts_are_those_of_pytorch(seed: int, shape: tuple[int, ...]) -> None:
    placements = random_placements(seed)
    print(seed, placements)
    for coordinate, mesh in meshes():
        local, offset = _compute_local_shape_and_global_offset(
            torch.Size(shape), SIZES, list(coordinate).__getitem__, placements
        )
        expected = tuple(slice(o, o + size) for o, size in zip(offset, local, strict=True))
        assert parts_of(shape, mesh, placements) == [expected]


@pytest.mark.parametrize("blocks", [Blocks(0, 6), Blocks(1, 6), Blocks(0, 4)], ids=str)
def test_parts_of_blocks_are_parts_of_what_the_graph_sees(blocks: Blocks) -> None:
    shape = (48, 24) if blocks.dim == 0 else (24, 48)
    whole = torch.arange(48 * 24).view(shape)
    seen = whole.view(blocks.apart(shape))
    checked = 0
    for layout in product(("R", "S0", "S1", "S2"), repeat=len(SIZES)):
        shards = [torch.tensor([seen.shape[d]]) for d in range(3)]
        for entry, size in zip(layout, SIZES, strict=True):
            if entry != "R":
                shards[int(entry[1])] = shards[int(entry[1])] / size
        if any(float(left) % 1 for left in shards):
            continue
        checked += 1
        placements = placements_of(",".join(layout), blocks, SIZES)
        for coordinate, mesh in meshes():
            part = seen
            for entry, size, index in zip(layout, SIZES, coordinate, strict=True):
                if entry != "R":
                    part = part.chunk(size, int(entry[1]))[index]
            expected = part.reshape(blocks.together(part.shape))
            assert torch.equal(take_part(whole, mesh, placements), expected), layout
            assert take_part(whole, mesh, placements).shape == expected.shape
    assert checked > 30


def test_blocks_have_equal_parts_only() -> None:
    made = make("odd_fused", torch.float64)
    captured = capture(made.model, made.args)
    task = PlanningTask(captured, load_cluster("cpu"))
    rows = make_space(captured, task.settings(2)).nodes()
    configs = {row.name: row.configs for row in rows}
    assert captured.blocks["layers.2.gate_up.weight"] == Blocks(0, 2)
    assert "d1" in configs["layers.2.to_dtype"]  # the features, of the cast of the weight
    assert "S1" in configs["layers.2.down.weight"]
    assert configs["layers.2.gate_up.weight"] == ["S0", "S2", "R"]  # [2, 23, 30] in the graph
