"""What is planned: a captured model, where it shall run, and how it is trained."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from tensoropt_torch.config import mesh_axes
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import (
    Constraint,
    InputMode,
    MeasuredCurve,
    OpRecord,
    Settings,
    StagePins,
    default_max_configs,
)
from tensoropt_torch.planner.memory_limits import DEFAULT_MEMORY_FRACTION, default_memory_limit
from tensoropt_torch.planner.optimizer_model import OptimizerModel
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.searched import FrontierPart
from tensoropt_torch.space.buckets import bucket_bytes
from tensoropt_torch.space.options import SpaceOptions
from tensoropt_torch.units import dtype_name

# Fields of a task of which settings have what follows from them on so many devices.
WORKED_OUT = frozenset({"cluster", "optimizer", "measured", "max_configs", "operators", "overlap"})


def handed_over(source: Any, target: type[Any], worked_out: Collection[str]) -> dict[str, Any]:
    """Fields that the dataclass ``target`` has by the same name as ``source``, as they are, but
    for those of which it has what was worked out of them."""
    names = {part.name for part in fields(source)} & {part.name for part in fields(target)}
    return {name: getattr(source, name) for name in sorted(names - set(worked_out))}


class StageSearch(Protocol):
    """Finds strategies in stages."""

    def __call__(
        self,
        task: PlanningTask,
        num_devices: int,
        memory_limit: float,
        pick_limits: Sequence[float],
        known: Sequence[tuple[float, float]],
    ) -> FrontierPart:
        """Of so many devices. Limits and ``known`` as of ``SearchSettings.run``."""


@dataclass(frozen=True)
class PlanningTask(SpaceOptions):
    """A model, where it shall run, and how it is trained; and ``SpaceOptions`` as they are.

    ``measured`` are times of collectives on ``measured_on`` devices, and
    ``operators`` of operators while so many were busy; they say nothing of other
    device counts. ``memory_fraction`` is the part of a device's memory that plans
    may use if no limit is given. ``overlap``: reshards of parameters and of their gradients
    run while the device computes; None: where that makes steps faster. ``in_micro_batches`` is
    the model as it runs in 2, 4, ... micro-batches, whose points are on the same frontier;
    ``captured`` may be in micro-batches itself, and then every plan runs so many at least.
    ``max_stages`` is asked for, with ``stage_pins`` no strategies without stages are, and
    ``stage_search`` finds those in stages.
    """

    captured: CapturedModel
    cluster: Cluster
    optimizer: str | OptimizerModel = "adamw"
    inputs: InputMode = "replicated"
    whole_inputs: tuple[str, ...] = ()
    max_configs: int | None = None
    recompute: bool = False
    measured: tuple[MeasuredCurve, ...] = ()
    measured_on: int = 0
    operators: tuple[OpRecord, ...] = ()
    memory_fraction: float = DEFAULT_MEMORY_FRACTION
    overlap: bool | None = None
    constraints: tuple[Constraint, ...] = ()
    search: SearchSettings = field(default_factory=SearchSettings)
    in_micro_batches: tuple[CapturedModel, ...] = ()
    input_dims: tuple[tuple[str, int], ...] = ()
    max_stages: int = 1
    stage_pins: StagePins = field(default_factory=StagePins)
    stage_search: StageSearch | None = None

    def graphs(self, num_devices: int) -> Iterator[tuple[CapturedModel, Settings]]:
        """The model, and in the micro-batches that there may be on so many devices, each with
        the settings of its strategy space."""
        settings = self.settings(num_devices)
        yield self.captured, settings
        for captured in self.in_micro_batches:
            if self._can_share(captured, num_devices):
                yield captured, replace(settings, micro_batches=captured.micro_batches)

    def _can_share(self, captured: CapturedModel, num_devices: int) -> bool:
        """Whether every device gets rows of every micro-batch, where it gets some of the batch."""
        if self.inputs == "replicated":
            return True
        named = (s for s in captured.inputs if s.names[0] not in self.whole_inputs)
        shapes = [s.placeholder.meta["val"].shape for s in named if s.kind == "input"]
        return all(shape[0] % num_devices == 0 for shape in shapes if len(shape) > 0)

    def settings(self, num_devices: int) -> Settings:
        """The strategy space of the model on ``num_devices`` devices of the cluster."""
        optimizer = OptimizerModel.of(self.optimizer)
        settings = Settings(
            cluster=self.cluster.to_dict(),
            mesh_axes=tuple(mesh_axes(self.cluster, num_devices)),
            measured=self.measured if num_devices == self.measured_on else (),
            optimizer=str(optimizer),
            optimizer_state_bytes=optimizer.state_bytes(),
            max_configs=self.max_configs or default_max_configs(num_devices),
            operators=self.operators if num_devices == self.measured_on else (),
            overlap=self._overlaps,
            micro_batches=self.captured.micro_batches,
            **handed_over(self, Settings, WORKED_OUT),
        )
        return replace(settings, bucket_bytes=bucket_bytes(settings))

    def with_runtime(self, **changes: Any) -> PlanningTask:
        """The task on devices with other fields of their ``Runtime``."""
        device = self.cluster.device
        device = replace(device, runtime=replace(device.runtime, **changes))
        return replace(self, cluster=replace(self.cluster, device=device))

    @property
    def _overlaps(self) -> bool:
        if self.overlap is not None:
            return self.overlap
        device = self.cluster.device
        exposed = device.runtime.exposed
        # A GPU's network does not need what computes; processes of a CPU share its cores.
        return device.type == "cuda" if exposed is None else exposed.hides_something

    @property
    def state_bytes(self) -> float:
        """Of parameters and their optimizer states, on all devices together: any strategy has
        them at least once."""
        states = OptimizerModel.of(self.optimizer).state_bytes()
        total = 0.0
        for source in self.captured.parameters:
            value = source.placeholder.meta["val"]
            state = states.get(dtype_name(value.dtype), 0.0) if value.requires_grad else 0.0
            total += value.numel() * (value.dtype.itemsize + state)
        return total

    @property
    def default_memory_limit(self) -> float:
        """Bytes per device that plans may use if no limit is given."""
        return default_memory_limit(self.cluster.device.memory_bytes, self.memory_fraction)

    def memory_limit_of(self, given: float | None) -> float:
        """The limit that was given, else the default one."""
        return self.default_memory_limit if given is None else given
