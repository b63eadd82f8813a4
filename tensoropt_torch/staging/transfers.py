"""What sending between the stages of a plan takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import collective_times
from tensoropt_torch.space.settings import Settings
from tensoropt_torch.stages import StageGraph


@dataclass(frozen=True)
class _Link:
    """Between two stages: seconds of a message, and of a byte that each device sends."""

    latency_s: float
    byte_s: float
    level: int


class Transfers:
    """Seconds of what the devices of a stage send to those of the same number in the next one,
    all at once. Stage after stage has devices that follow each other, as ranks do.

    A send takes what a broadcast to one other device takes, if the running job has measured that
    over the same level; else what the description says of the level that it crosses, whose link
    all devices of a unit share.

    Args:
        task: with what was measured of the job, if something was.
        count: devices of all stages together.
    """

    def __init__(self, task: PlanningTask, count: int, stages: int) -> None:
        settings = task.settings(count)
        devices = count // stages
        self._links = [_link(task, devices, stage, stages) for stage in range(stages)]
        self._measured = collective_times(settings) if settings.measured else None
        self._axes = [_measured_axis(settings, link.level) for link in self._links]

    def seconds(self, stage: int, num_bytes: float) -> float:
        """Of bytes that each device of a stage sends to the next; the last one sends to the first
        one, where stages have several chunks."""
        axis = self._axes[stage]
        if self._measured is not None and axis is not None:
            return float(self._measured.time_s(_C.Collective.BROADCAST, 1 << axis, num_bytes))
        link = self._links[stage]
        return link.latency_s + num_bytes * link.byte_s

    def of_graph(self, stage: int, graph: StageGraph, shares: Sequence[int]) -> tuple[float, float]:
        """Of what a stage sends in a micro-batch, and of the gradients that come back. Of each
        value there are so many different ``shares``, of which a device has one."""
        values = gradients = 0.0
        for crossing, count in zip(graph.sent, shares, strict=True):
            num_bytes = crossing.num_bytes / count
            values += num_bytes
            gradients += num_bytes if crossing.has_gradient else 0.0
        return self.seconds(stage, values), self.seconds(stage, gradients)


def _link(task: PlanningTask, devices: int, stage: int, stages: int) -> _Link:
    first, next_first = stage * devices, (stage + 1) % stages * devices
    levels = task.cluster.levels
    inside = 1  # devices of one unit of the level
    for index in reversed(range(len(levels))):
        unit = inside * levels[index].count
        if first // unit == next_first // unit or index == 0:
            level, senders = levels[index], min(devices, inside)
            return _Link(level.latency_s, senders / level.bandwidth_bytes_per_s, index)
        inside = unit
    raise AssertionError("a cluster has a level")


def _measured_axis(settings: Settings, level: int) -> int | None:
    """One of two devices at this level over which broadcasts were measured, or over one alike."""
    mesh = _C.Mesh(list(settings.mesh_axes))
    known = {mesh.canonical(axes) for name, axes, _ in settings.measured if name == "broadcast"}
    for axis, at in enumerate(settings.mesh_axes):
        if at == (2, level) and mesh.canonical(1 << axis) in known:
            return axis
    return None
