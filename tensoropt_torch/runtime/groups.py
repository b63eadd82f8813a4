"""Process groups for sets of mesh axes (``meshes.py``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.host import at_exit as _at_exit  # noqa: F401 (for its effect)
from tensoropt_torch.runtime.host import host_settings
from tensoropt_torch.runtime.host.memory import keep_memory
from tensoropt_torch.runtime.host.scheduling import favour_network, started_favoured
from tensoropt_torch.runtime.meshes import (
    backend_of_job,
    device_mesh,
    make_group,
    timeout_of_job,
    wait_until_connected,
)


class AxisGroups:
    """The c10d groups of one job by axis set, each created once.

    ``create`` is collective: every rank calls it with the same axis sets, in any
    order. A set whose group is the whole job uses the default process group; the others
    have its timeout. Of Gloo those of single axes are the groups of the job's ``DeviceMesh``,
    since each has a thread that wakes up a hundred times a second; those of other backends
    are not, since they hold memory of the device until they are closed. With ``of_their_own`` no
    group is that of anybody else, so that all can be left (``leave``).
    """

    def __init__(
        self, sizes: Sequence[int], device_type: str = "cpu", *, of_their_own: bool = False
    ) -> None:
        """Groups on a mesh with axes of these sizes, for tensors on this device.

        Raises:
            TensorOptError: the job has another number of processes, or its
                default process group does not serve the device type.

        """
        self.sizes = tuple(sizes)
        self.device_type = device_type
        self.are_of_their_own = of_their_own
        self._groups: dict[int, dist.ProcessGroup] = {}
        self._own: list[dist.ProcessGroup] = []
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

    def mesh(self) -> DeviceMesh:
        """The ``DeviceMesh`` with these axes, which stays. Collective."""
        with self._on_host():
            return device_mesh(self.sizes, self.device_type)

    def create_control(self) -> dist.ProcessGroup | None:
        """A new group of the whole job on CPUs, for what ranks tell each other beside their
        tensors; None in a job of one process. Collective."""
        if dist.get_world_size() == 1:
            return None
        with self._on_host():
            timeout = timeout_of_job(self.device_type)
            group: dist.ProcessGroup = dist.new_group(timeout=timeout, backend="gloo")
            wait_until_connected(group)
        self._own.append(group)
        return group

    def group(self, axes: int) -> dist.ProcessGroup:
        """The group of this rank. Requires that it was created."""
        return self._groups[axes]

    def name(self, axes: int) -> str:
        """The c10d name of this rank's group, which C++ operators take."""
        name: str = self._groups[axes].group_name
        return name

    def close(self) -> None:
        """Destroys the groups that are of this object alone. Collective."""
        self._groups.clear()
        while self._own:
            dist.destroy_process_group(self._own.pop())

    def leave(self) -> None:
        """As ``close``, in the middle of collectives, by each rank by itself: ranks that wait for
        this one in any of the groups hear of it at once (Gloo), or when they leave as well.

        Requires that the groups are of their own, and that nothing else has them.
        """
        assert self.are_of_their_own or not self._own
        end_waits(self._own, self.device_type)
        self.close()

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

    def _create(self, axes: int) -> dist.ProcessGroup:
        axis, own = axes.bit_length() - 1, self.are_of_their_own
        if not own and axes == 1 << axis and backend_of_job(self.device_type).name() == "gloo":
            shared: dist.ProcessGroup = device_mesh(self.sizes, self.device_type).get_group(axis)
            return shared
        group = make_group(self.sizes, axes, self.device_type, of_its_own=own)
        if group is not dist.group.WORLD:
            self._own.append(group)
        return group


def _check_backend(device_type: str) -> None:
    try:
        backend_of_job(device_type)
    except RuntimeError as error:
        raise TensorOptError(
            f"the default process group (backend '{dist.get_backend()}') does not "
            f"serve '{device_type}' tensors; call init_process_group with 'gloo' for "
            f"CPUs or 'nccl' for GPUs"
        ) from error


def end_waits(groups: Iterable[dist.ProcessGroup], device_type: str) -> None:
    """In groups that are left in the middle of collectives: NCCL waits until it is told."""
    if backend_of_job(device_type).name() != "nccl":
        return
    device = torch.device(device_type)
    for group in groups:
        if device in group._device_types:
            group._get_backend(device).abort()
