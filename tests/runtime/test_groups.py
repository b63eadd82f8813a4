"""Process groups by axis set."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.meshes import partition
from tests.distributed.harness import run_ranks

HERE = "tests.runtime.test_groups"


def test_partition_by_hand():
    assert partition((2, 2), 0b01) == [[0, 2], [1, 3]]  # axis 0 is outermost
    assert partition((2, 2), 0b10) == [[0, 1], [2, 3]]
    assert partition((2, 2), 0b11) == [[0, 1, 2, 3]]
    assert partition((2, 3, 2), 0b101) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    assert partition((), 0) == [[0]]


@pytest.mark.parametrize("sizes", [(2,), (2, 3), (3, 2, 2), (2, 2, 2, 2)])
def test_partition_is_that_of_the_core(sizes: tuple[int, ...]):
    mesh = _C.Mesh([(size, 0) for size in sizes])
    for axes in range(1 << len(sizes)):
        groups = partition(sizes, axes)
        assert sorted(itertools.chain(*groups)) == list(range(math.prod(sizes)))
        for group in groups:
            for rank in group:
                assert mesh.group_of(axes, rank) == group


def timeouts(_: None) -> tuple[timedelta, timedelta]:
    world = dist.group.WORLD
    assert world is not None
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=77), world)
    groups = AxisGroups((2, 1))
    groups.create([0b10])
    device = torch.device("cpu")
    found = [g._get_backend(device).options._timeout for g in (world, groups.group(0b10))]
    groups.close()
    return found[0], found[1]


def test_groups_wait_as_long_as_the_default_one() -> None:
    for whole, part in run_ranks(2, f"{HERE}:timeouts"):
        assert whole == part == timedelta(seconds=77)


def check_groups(_: None) -> dict[int, list[int]]:
    groups = AxisGroups((2, 2))
    # Every rank names them in an order of its own, and some twice.
    wanted = [0b11, 0b10, 0b01, 0b10]
    if dist.get_rank() % 2:
        wanted.reverse()
    groups.create(wanted)
    groups.create([0b01])  # they exist: nothing to do
    world = dist.group.WORLD
    assert world is not None
    assert groups.name(0b11) == world.group_name
    members = {}
    for axes in (0b01, 0b10, 0b11):
        group = groups.group(axes)
        assert group.group_name == groups.name(axes)
        ranks = [torch.zeros(1, dtype=torch.long) for _ in range(group.size())]
        dist.all_gather(ranks, torch.tensor([dist.get_rank()]), group=group)
        members[axes] = [int(rank) for rank in ranks]
    groups.close()
    dist.barrier()  # the default group still lives
    return members


def test_groups_connect_the_ranks_along_their_axes():
    for rank, members in enumerate(run_ranks(4, f"{HERE}:check_groups")):
        for axes, ranks in members.items():
            assert ranks == next(g for g in partition((2, 2), axes) if rank in g)


def shared_groups(_: None) -> list[int]:
    """How many there are after each of several modules' groups were made, and after the end."""
    counts = []
    for _module in range(3):
        groups = AxisGroups((2, 2, 2))
        mesh = groups.mesh()
        groups.create([0b001, 0b100, 0b011])
        assert [mesh.get_group(axis) for axis in (0, 2)] == [groups.group(1), groups.group(4)]
        counts.append(len(groups_of_process()))
        groups.close()
        assert mesh.get_group("axis0").size() == 2  # it stays, as what DTensor keeps of it
        dist.barrier(group=mesh.get_group("axis0"))
    return [*counts, len(groups_of_process())]


def test_modules_share_the_groups_of_single_axes() -> None:
    for counts in run_ranks(8, f"{HERE}:shared_groups"):
        # The default one, those of three axes, that of two axes.
        assert counts == [5, 5, 5, 4]


def groups_of_process() -> list[dist.ProcessGroup]:
    return list(dist.distributed_c10d._world.pg_map)


def meshes_of_jobs(_: None) -> tuple[bool, bool]:
    """Whether a mesh is made once in a job, and again in another job of the same process."""
    mesh = AxisGroups((1, 1)).mesh()
    again = AxisGroups((1, 1)).mesh()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    other = AxisGroups((1, 1)).mesh()
    dist.barrier(group=other.get_group("axis1"))
    return mesh is again, mesh is not other


def test_each_job_has_a_mesh_of_its_own() -> None:
    assert run_ranks(1, f"{HERE}:meshes_of_jobs") == [(True, True)]


def check_errors(_: None) -> list[str]:
    messages = []
    for sizes, device, axes in (
        ((2, 2), "cpu", 1),
        ((2,), "xpu", 1),
        ((2,), "cpu", 0b10),
    ):
        try:
            AxisGroups(sizes, device).create([axes])
        except TensorOptError as error:
            messages.append(str(error))
    return messages


def test_mistakes_are_named():
    for messages in run_ranks(2, f"{HERE}:check_errors"):
        mesh, device, axes = messages
        assert "a mesh of 2x2 has 4 devices, but 2 processes run" in mesh
        assert "(backend 'gloo') does not serve 'xpu' tensors" in device
        assert "axis set 0b10 has axes that a mesh with 1 axes lacks" in axes
