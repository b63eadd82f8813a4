"""Which part of a whole tensor a rank has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tensoropt_torch.values.placements import dtensor_of, is_strided

Part = tuple[slice, ...]  # of each dim


class SavedTensor(Protocol):
    """A tensor of which parts can be read; those of PyTorch are such."""

    @property
    def shape(self) -> torch.Size: ...

    def __getitem__(self, part: Part) -> torch.Tensor: ...


def parts_of(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Placement]) -> list[Part]:
    """What this rank has of a tensor of this shape: rectangles in the order in which they
    lie in the rank's part, one unless that is made of parts of blocks.

    Of several axes that shard one dim the outer one splits it first.
    """
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    return parts_at(shape, tuple(mesh.shape), placements, coordinate)


def parts_at(
    shape: Sequence[int],
    sizes: Sequence[int],
    placements: Sequence[Placement],
    coordinate: Sequence[int],
) -> list[Part]:
    """As ``parts_of``, of the rank at a coordinate of a mesh with axes of these sizes."""
    runs = [[range(size)] for size in shape]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard | _StridedShard):
            dim, pieces = placement.dim, 1
            if isinstance(placement, _StridedShard):
                pieces = int(placement.split_factor)
            runs[dim] = _cut(runs[dim], pieces, sizes[axis], coordinate[axis])
    slices = ([slice(run.start, run.stop) for run in of_dim] for of_dim in runs)
    return list(itertools.product(*slices))


def _cut(runs: list[range], pieces: int, parts: int, part: int) -> list[range]:
    """Of each of so many equal pieces of the runs, one of its parts."""
    piece = sum(map(len, runs)) // pieces
    own = chunk(piece, parts, part)
    starts = [piece * number for number in range(pieces)]
    found = [run for start in starts for run in _between(runs, start + own.start, start + own.stop)]
    return _merged(found)


def chunk(size: int, parts: int, part: int) -> range:
    """Where part number ``part`` lies of those into which ``torch.chunk`` cuts a dim; it may be
    empty."""
    length = -(-size // parts)
    start = min(part * length, size)
    return range(start, min(start + length, size))


def _between(runs: list[range], start: int, stop: int) -> list[range]:
    """What lies between two places of the runs, one after the other."""
    found, begin = [], 0
    for run in runs:
        inside = run[max(start - begin, 0) : max(stop - begin, 0)]
        begin += len(run)
        if inside:
            found.append(inside)
    return found or [range(0)]


def _merged(runs: list[range]) -> list[range]:
    """Runs that follow each other are one."""
    result = [runs[0]]
    for run in runs[1:]:
        if run.start == result[-1].stop:
            result[-1] = range(result[-1].start, run.stop)
        else:
            result.append(run)
    return result


def take_part(
    whole: SavedTensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """What this rank has of a tensor, which is read in parts; a view of a tensor, if that is
    one rectangle."""
    pieces = [whole[part] for part in parts_of(whole.shape, mesh, placements)]
    if len(pieces) == 1:
        return pieces[0]
    (dim,) = {p.dim for p in placements if isinstance(p, _StridedShard)}
    return torch.cat(pieces, dim)


def redistributed(tensor: DTensor, placements: Sequence[Placement]) -> DTensor:
    """The tensor with other placements. Collective."""
    if not is_strided(placements) or tensor.placements == tuple(placements):
        return tensor.redistribute(placements=placements)
    # PyTorch has no way to strided placements that is right on every mesh.
    part = take_part(tensor.full_tensor(), tensor.device_mesh, placements)
    return dtensor_of(part, tensor.device_mesh, placements, tensor)


def coordinate_of(rank: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Of a rank on a mesh with axes of these sizes; ranks count the last axis fastest."""
    coordinate = []
    for size in reversed(sizes):
        coordinate.append(rank % size)
        rank //= size
    return tuple(reversed(coordinate))


def part_at(
    shape: Sequence[int],
    dims: Sequence[int | None],
    sizes: Sequence[int],
    coordinate: Sequence[int],
    units: Sequence[int] = (),
) -> Part:
    """What the rank at ``coordinate`` has, where mesh axes of these sizes split ``dims``
    (None: the axis splits no dim), the outer ones first, between ``units`` of the dims."""
    units = units or [1] * len(shape)
    part = [range(size // unit) for size, unit in zip(shape, units, strict=True)]
    for dim, size, index in zip(dims, sizes, coordinate, strict=True):
        if dim is not None:
            own = chunk(len(part[dim]), size, index)
            part[dim] = part[dim][own.start : own.stop]
    ends = zip(part, units, strict=True)
    return tuple(slice(extent.start * unit, extent.stop * unit) for extent, unit in ends)
