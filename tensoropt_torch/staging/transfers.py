"""What sending between the stages of a plan takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import collective_times
from tensoropt_torch.space.settings import Settings
from tensoropt_torch.stages import StageGraph


@dataclass(frozen=True)
class _Link:
    """That of a unit of a level, over which so many devices send."""

    level: int
    latency_s: float
    byte_s: float  # of a byte from each of them


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
        self._links = [_links(task, devices, stage, stages) for stage in range(stages)]
        self._measured = collective_times(settings) if settings.measured else None
        outermost = (min(link.level for link in links) for links in self._links)
        self._axes = [_measured_axis(settings, level) for level in outermost]

    def seconds(self, stage: int, num_bytes: float) -> float:
        """Of bytes that each device of a stage sends to the next; the last one sends to the first
        one, where stages have several chunks."""
        axis = self._axes[stage]
        if self._measured is not None and axis is not None:
            return float(self._measured.time_s(_C.Collective.BROADCAST, 1 << axis, num_bytes))
        return max(link.latency_s + num_bytes * link.byte_s for link in self._links[stage])

    def of_graph(self, stage: int, graph: StageGraph, shares: Sequence[int]) -> tuple[float, float]:
        """Of what a stage sends in a micro-batch, and of the gradients that come back. Of each
        value there are so many different ``shares``, of which a device has one."""
        values = gradients = 0.0
        for crossing, count in zip(graph.sent, shares, strict=True):
            num_bytes = crossing.num_bytes / count
            values += num_bytes
            gradients += num_bytes if crossing.has_gradient else 0.0
        return self.seconds(stage, values), self.seconds(stage, gradients)


def _links(task: PlanningTask, devices: int, stage: int, stages: int) -> list[_Link]:
    """Over which devices of the stage send. What a device sends leaves the unit that it is in, of
    the outermost level at which it and the receiver are in different ones."""
    levels = task.cluster.levels
    sizes = [
        math.prod(level.count for level in levels[index + 1 :]) for index in range(len(levels))
    ]
    ahead = ((stage + 1) % stages - stage) * devices
    senders: Counter[tuple[int, int]] = Counter()
    for device in range(stage * devices, (stage + 1) * devices):
        index = next(i for i, n in enumerate(sizes) if device // n != (device + ahead) // n)
        senders[index, device // sizes[index]] += 1
    of_level = {
        index: max(n for (i, _), n in senders.items() if i == index) for index, _ in senders
    }
    return [
        _Link(index, levels[index].latency_s, number / levels[index].bandwidth_bytes_per_s)
        for index, number in of_level.items()
    ]


def _measured_axis(settings: Settings, level: int) -> int | None:
    """One of two devices at this level over which broadcasts were measured, or over one alike."""
    mesh = _C.Mesh(list(settings.mesh_axes))
    known = {mesh.canonical(axes) for name, axes, _ in settings.measured if name == "broadcast"}
    for axis, at in enumerate(settings.mesh_axes):
        if at == (2, level) and mesh.canonical(1 << axis) in known:
            return axis
    return None
