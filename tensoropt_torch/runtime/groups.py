"""Process groups for sets of mesh axes.

The groups of an axis set are the ranks that differ along these axes only; they
partition the job. Axis sets are integers: bit ``i`` is mesh axis ``i``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.host import at_exit as _at_exit  # noqa: F401 (for its effect)
from tensoropt_torch.runtime.host import host_settings
from tensoropt_torch.runtime.host.memory import keep_memory
from tensoropt_torch.runtime.host.scheduling import favour_network, started_favoured


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


class AxisGroups:
    """The c10d groups of one job by axis set, each created once.

    ``create`` is collective: every rank calls it with the same axis sets, in any
    order. A set whose group is the whole job uses the default process group; the others
    have its timeout.
    """

    def __init__(self, sizes: Sequence[int], device_type: str = "cpu") -> None:
        """Groups on a mesh with axes of these sizes, for tensors on this device.

        Raises:
            TensorOptError: the job has another number of processes, or its
                default process group does not serve the device type.

        """
        self.sizes = tuple(sizes)
        self.device_type = device_type
        self._groups: dict[int, dist.ProcessGroup] = {}
        self._control: list[dist.ProcessGroup] = []
        world = dist.get_world_size()
        if world != math.prod(sizes):
            raise TensorOptError(
                f"a mesh of {'x'.join(map(str, sizes)) or 'no axes'} has "
                f"{math.prod(sizes)} devices, but {world} processes run; start "
                f"torchrun with {math.prod(sizes)} processes in all"
            )
        _check_backend(device_type)

    @property
    def created(self) -> list[int]:
        """The axis sets whose groups there are."""
        return sorted(self._groups)

    def create(self, axis_sets: Iterable[int]) -> None:
        """Creates the groups of these axis sets that do not exist yet, and asks the host
        for what ``host_settings`` says.

        Raises:
            TensorOptError: on every rank, if an axis set has axes that the mesh lacks, or
                the environment asks for what is not permitted on some rank.
        """
        wanted = sorted(set(axis_sets) - set(self._groups) - {0})
        for axes in wanted:
            if axes >> len(self.sizes):
                raise TensorOptError(
                    f"axis set {axes:#b} has axes that a mesh with {len(self.sizes)} axes lacks"
                )
        with self._on_host():
            for axes in wanted:
                self._groups[axes] = self._create(axes)

    def create_control(self) -> dist.ProcessGroup | None:
        """A new group of the whole job on CPUs, for what ranks tell each other beside their
        tensors; None in a job of one process. Collective."""
        if dist.get_world_size() == 1:
            return None
        with self._on_host():
            group: dist.ProcessGroup = dist.new_group(timeout=self._timeout(), backend="gloo")
        self._control.append(group)
        return group

    def group(self, axes: int) -> dist.ProcessGroup:
        """The group of this rank. Requires that it was created."""
        return self._groups[axes]

    def name(self, axes: int) -> str:
        """The c10d name of this rank's group, which C++ operators take."""
        name: str = self._groups[axes].group_name
        return name

    def close(self) -> None:
        """Destroys the groups that were created here. Collective."""
        world = dist.group.WORLD
        for group in (*self._groups.values(), *self._control):
            if group is not world:
                dist.destroy_process_group(group)
        self._groups.clear()
        self._control.clear()

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        """Groups made inside are as ``host_settings`` says, and so is the process."""
        host = on_all_ranks(lambda: host_settings(self.device_type))
        if host.keeps_memory:
            keep_memory()
        if host.favours_network:
            favour_network()  # of the default group
        with started_favoured() if host.favours_network else nullcontext():
            yield

    def _timeout(self) -> timedelta | None:
        """That of the default group; by default others wait for longer."""
        world = dist.group.WORLD
        assert world is not None
        options = world._get_backend(torch.device(self.device_type)).options
        return getattr(options, "_timeout", None)  # a fake backend has none

    def _create(self, axes: int) -> dist.ProcessGroup:
        world = dist.group.WORLD
        assert world is not None
        groups = partition(self.sizes, axes)
        if len(groups) == 1:
            return world
        rank = dist.get_rank()
        timeout = self._timeout()
        # Every rank takes part in the creation of every group, in this order.
        handles = [dist.new_group(ranks, timeout) for ranks in groups]
        index = next(i for i, ranks in enumerate(groups) if rank in ranks)
        handle = handles[index]
        assert isinstance(handle, dist.ProcessGroup)
        return handle


def _check_backend(device_type: str) -> None:
    world = dist.group.WORLD
    assert world is not None
    try:
        world._get_backend(torch.device(device_type))
    except RuntimeError as error:
        raise TensorOptError(
            f"the default process group (backend '{dist.get_backend()}') does not "
            f"serve '{device_type}' tensors; call init_process_group with 'gloo' for "
            f"CPUs or 'nccl' for GPUs"
        ) from error
