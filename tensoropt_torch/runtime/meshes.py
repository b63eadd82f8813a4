"""Ranks on a mesh of devices, and the ``DeviceMesh`` of the job.

The groups of an axis set are the ranks that differ along these axes only; they
partition the job. Axis sets are integers: bit ``i`` is mesh axis ``i``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed.device_mesh import DeviceMesh

# By sizes and device type, in the job with this default group: a process may end one and join
# another.
_made: dict[dist.ProcessGroup, dict[tuple[tuple[int, ...], str], DeviceMesh]] = {}


def partition(sizes: Sequence[int], axes: int) -> list[list[int]]:
    """The groups of ranks along a set of mesh axes.

    Args:
        sizes: sizes of the mesh axes, outermost (most significant) first.
        axes: the axis set.

    Returns:
        All groups by their smallest rank; ranks inside a group ascend.

    """
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]

    def offsets(inside: bool) -> list[int]:
        steps = [
            range(0, size * stride, stride)
            for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True))
            if bool(axes >> axis & 1) == inside
        ]
        return [sum(step) for step in itertools.product(*steps)]

    return [[start + step for step in offsets(True)] for start in offsets(False)]


def all_axis_sets(sizes: Sequence[int]) -> range:
    """Every set of the axes of a mesh but the empty one."""
    return range(1, 2 ** len(sizes))


def mesh_axes_of(sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of the axes of the ``DeviceMesh`` of a mesh with axes of these sizes;
    a single device has one of size 1."""
    shape = tuple(sizes) or (1,)
    return shape, tuple(f"axis{index}" for index in range(len(shape)))


def make_group(
    sizes: Sequence[int], axes: int, device_type: str, *, of_its_own: bool = False
) -> dist.ProcessGroup:
    """The group of this rank along a set of axes of the job's mesh: the default one where that
    is the whole job, unless it shall be one ``of_its_own``, else a new one, which waits as long
    for others. Collective."""
    world = _world()
    groups = partition(sizes, axes)
    if len(groups) == 1 and not of_its_own:
        return world
    timeout = timeout_of_job(device_type)
    # Every rank takes part in the creation of every group, in this order.
    handles = [dist.new_group(ranks, timeout) for ranks in groups]
    rank = dist.get_rank()
    handle = handles[next(i for i, ranks in enumerate(groups) if rank in ranks)]
    assert isinstance(handle, dist.ProcessGroup)
    wait_until_connected(handle)
    return handle


def wait_until_connected(group: dist.ProcessGroup) -> None:
    """Until all ranks of the group have made it. Collective on them.

    A rank returns from making a group of Gloo when it has its own connections; should it
    close the group then, ranks that still connect to it would fail.
    """
    cpu = torch.device("cpu")
    if cpu in group._device_types:
        backend: Any = group._get_backend(cpu)  # whose stub lacks collectives
        if backend.name() == "gloo":
            backend.barrier().wait()


def device_mesh(sizes: Sequence[int], device_type: str) -> DeviceMesh:
    """The mesh of the job with axes of these sizes, with a group along each. Collective.

    It is made once and stays for as long as the default group: ``DTensor`` keeps meshes with
    what it knows of operators, and takes those for the same that have equal axes.
    """
    world = _world()
    if world not in _made:
        _made.clear()
        _made[world] = {}
    key = tuple(sizes), device_type
    if key not in _made[world]:
        shape, names = mesh_axes_of(sizes)
        groups = [make_group(shape, 1 << axis, device_type) for axis in range(len(shape))]
        ranks = torch.arange(math.prod(shape)).reshape(shape)
        _made[world][key] = DeviceMesh.from_group(groups, device_type, ranks, mesh_dim_names=names)
    return _made[world][key]


def is_mesh_of_job(mesh: DeviceMesh) -> bool:
    """Whether it is one that ``device_mesh`` has made."""
    world = dist.group.WORLD
    return any(mesh is made for made in _made.get(world, {}).values()) if world else False


def backend_of_job(device_type: str) -> Backend:
    """Of the default group, for tensors on such devices.

    Raises:
        RuntimeError: it does not serve them.
    """
    return _world()._get_backend(torch.device(device_type))


def timeout_of_job(device_type: str) -> timedelta | None:
    """How long collectives of the default group wait; by default others wait for longer."""
    return getattr(backend_of_job(device_type).options, "_timeout", None)  # a fake one has none


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world
