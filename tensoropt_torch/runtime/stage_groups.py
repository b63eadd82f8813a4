"""The ranks of a job in stages: a mesh of each stage, and the groups between stages.

Rank ``s n + k`` is rank k of stage s, of n. So stages are the outermost axis of a mesh of the whole
job: a group along axes of a stage's mesh is one along the axes behind that, and the ranks k of
all stages, a **column**, are a group along the first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.weak import WeakIdKeyDictionary

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import gather, on_all_ranks
from tensoropt_torch.runtime.groups import AxisGroups, end_waits
from tensoropt_torch.runtime.meshes import is_mesh_of_job, make_group, mesh_axes_of, timeout_of_job

T = TypeVar("T")

STAGE_AXIS = 1  # the axis set

_made: weakref.WeakSet[StageGroups] = weakref.WeakSet()
_places: Any = WeakIdKeyDictionary()  # StagePlace by parameter


class StageGroups:
    """Those of a job whose stages have meshes with axes of these sizes.

    Making it, and ``create``, are collective: all ranks of the job take part. With
    ``of_their_own`` no group is that of anybody else, so that all can be left (``leave``).

    Attributes:
        device: of this process.
        stage, rank: of this process, and its rank in the stage.
        stages: how many there are.
        mesh: of this rank's stage.
        column: the group of the same rank of all stages.
    """

    def __init__(
        self,
        stages: int,
        sizes: Sequence[int],
        device: torch.device,
        *,
        of_their_own: bool = False,
    ) -> None:
        self._sizes, names = mesh_axes_of(sizes)
        self.device = device
        self._device_type = device.type
        sizes_of_job = (stages, *self._sizes)
        self._all = AxisGroups(sizes_of_job, device.type, of_their_own=of_their_own)
        self.stages = stages
        self.stage, self.rank = divmod(dist.get_rank(), dist.get_world_size() // stages)
        inner = tuple(f"axis{index + 1}" for index in range(len(names)))
        self.mesh = self._all.mesh()[inner]
        _made.add(self)
        self._all.create([STAGE_AXIS])
        self.column = self._all.group(STAGE_AXIS)
        self._between = [self._new_column() for _ in range(4)]
        self._of_stages: list[dist.ProcessGroup] = []
        self._stage_axes = (1 << len(self._sizes)) - 1
        self.create([self._stage_axes] if self._stage_axes else [])

    @property
    def devices_of_stage(self) -> int:
        """How many each has."""
        return dist.get_world_size() // self.stages

    def _new_column(self) -> dist.ProcessGroup:
        sizes = self.stages, *self._sizes
        return make_group(sizes, STAGE_AXIS, self._device_type, of_its_own=True)

    def between(self, gradients: bool, wraps: bool) -> dist.ProcessGroup:
        """The column for transfers of one direction: a backend that runs them in order does not
        wait for those of the other. ``wraps``: from the last stage to the first, or back."""
        return self._between[2 * wraps + gradients]

    def create(self, axis_sets: Iterable[int]) -> None:
        """The groups of these axis sets of the stage's mesh, and of those that other ranks
        need."""
        wanted = sorted({axes for sets in gather(list(axis_sets)) for axes in sets})
        self._all.create([axes << 1 for axes in wanted])

    def name(self, axes: int) -> str:
        """Of this rank's group."""
        return self._all.name(axes << 1)

    def all_of_stage(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all ranks of this rank's stage, of one shape. Collective in it."""
        if not self._stage_axes:
            return [tensor]
        return all_of(self._all.group(self._stage_axes << 1), tensor)

    def gather(self, item: T) -> list[T]:
        """The item of every rank of this rank's stage. Collective in it."""
        if self.devices_of_stage == 1:
            return [item]
        return gather(item, self._all.group(self._stage_axes << 1))

    def together(self, action: Callable[[], T]) -> T:
        """As ``on_all_ranks``, of this rank's stage. Collective in it."""
        if self.devices_of_stage == 1:
            return action()
        return on_all_ranks(action, self._all.group(self._stage_axes << 1))

    def control(self) -> dist.ProcessGroup | None:
        """A new group of the whole job, see ``AxisGroups``. Collective."""
        return self._all.create_control()

    def global_rank(self, stage: int, rank: int | None = None) -> int:
        """Of a rank of a stage, by default of the same as this one."""
        size = self.devices_of_stage
        return stage * size + (self.rank if rank is None else rank)

    def of_stages(self, stages: Sequence[int]) -> dist.ProcessGroup | None:
        """A new group of this rank's number in these stages; None on others. Collective."""
        if len(stages) == self.stages:
            return self.column
        size, timeout = self.devices_of_stage, timeout_of_job(self._all.device_type)
        found: dist.ProcessGroup | None = None
        for rank in range(size):
            group = dist.new_group([stage * size + rank for stage in stages], timeout)
            if rank == self.rank and self.stage in stages:
                assert isinstance(group, dist.ProcessGroup)
                found = group
                self._of_stages.append(group)
        return found

    def close(self) -> None:
        """Destroys the groups that are of this object alone, which no module runs with any more.
        Collective."""
        self._destroy()
        self._all.close()

    def leave(self) -> None:
        """As ``close``, in the middle of collectives, by each rank by itself; as of
        ``AxisGroups``."""
        end_waits((*self._between, *self._of_stages), self._device_type)
        self._destroy()
        self._all.leave()

    def _destroy(self) -> None:
        """Those that are not of axes, unless that was done before."""
        if self not in _made:
            return
        for group in (*self._between, *self._of_stages):
            dist.destroy_process_group(group)
        self._between, self._of_stages = [], []
        del self.column
        _made.discard(self)


def all_of(group: dist.ProcessGroup, tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks of a group, of one shape. Collective in it."""
    if group.size() == 1:
        return [tensor]
    found = [torch.empty_like(tensor.contiguous()) for _ in range(group.size())]
    dist.all_gather(found, tensor.contiguous(), group=group)
    return found


@dataclass(frozen=True)
class StagePlace:
    """Of a parameter that some stages have.

    Attributes:
        number: among the parameters of the whole model, in its order.
    """

    number: int
    groups: StageGroups


def note_place(parameter: torch.Tensor, number: int, groups: StageGroups) -> None:
    """What ``place_of`` tells of a parameter."""
    _places[parameter] = StagePlace(number, groups)


def place_of(parameter: torch.Tensor) -> StagePlace | None:
    """Where a parameter of a stage is in the model; None: it is of no stage."""
    found: StagePlace | None = _places.get(parameter)
    return found


def is_mesh_of_stage(mesh: DeviceMesh) -> bool:
    """Whether it is the mesh of one stage of several."""
    return _groups_of(mesh) is not None


def is_mesh_of_module(mesh: DeviceMesh) -> bool:
    """Whether parameters of a parallel module lie on it: the one of the job, or of a stage."""
    return is_mesh_of_job(mesh) or is_mesh_of_stage(mesh)


def gather_on_mesh(item: T, mesh: DeviceMesh) -> list[T]:
    """The item of every rank of such a mesh. Collective in it."""
    stages = None if is_mesh_of_job(mesh) else _groups_of(mesh)
    return gather(item) if stages is None else stages.gather(item)


def _groups_of(mesh: DeviceMesh) -> StageGroups | None:
    """Those of the stage whose mesh it is. Operations on DTensors may give an equal mesh that is
    another object."""
    found = (groups for groups in _made if groups.mesh is mesh or groups.mesh == mesh)
    return next(found, None)


def stage_groups() -> StageGroups | None:
    """Those of a module in stages of this job, if there is one."""
    return next(iter(_made), None)


def groups_of_meshes(meshes: Iterable[DeviceMesh]) -> StageGroups | None:
    """Those of the stages that have these meshes, or have them on other ranks; None: none is the
    mesh of a stage. Collective.

    Raises:
        TensorOptError: on every rank; some are of stages of another number.
    """
    known = (_groups_of(mesh) for mesh in meshes)
    own = {groups.stages: groups for groups in known if groups is not None}
    numbers = sorted({number for several in gather(list(own)) for number in several})
    if len(numbers) > 1:
        raise TensorOptError(
            f"these are parts of modules in {' and in '.join(map(str, numbers))} stages; take "
            "those of one module at a time"
        )
    if not numbers:
        return None
    (number,) = numbers
    return own.get(number) or next(groups for groups in _made if groups.stages == number)


def refuse_stages(tensors: Iterable[object], what: str, instead: str) -> None:
    """Raises TensorOptError if one of the tensors lies on the mesh of a stage."""
    for tensor in tensors:
        mesh = getattr(tensor, "device_mesh", None)
        if isinstance(mesh, DeviceMesh) and is_mesh_of_stage(mesh):
            raise TensorOptError(
                f"{what} sees the parameters of this rank's stage alone, and would take them for "
                f"all of the model; {instead}"
            )
