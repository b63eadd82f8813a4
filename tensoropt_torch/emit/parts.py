"""Which part of a whole tensor a rank has."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Shard

Part = tuple[slice, ...]  # of each dim


def part_of(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]) -> Part:
    """What this rank has of a tensor of this shape; ``whole[part_of(...)]`` is a view.

    Requires sizes that the axes divide. Of several axes that shard one dim the outer one
    splits it first.
    """
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    starts, sizes = [0] * len(shape), list(shape)
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            sizes[placement.dim] //= mesh.size(axis)
            starts[placement.dim] += coordinate[axis] * sizes[placement.dim]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
