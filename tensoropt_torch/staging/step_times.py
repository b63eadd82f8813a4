"""What a step of a plan in stages takes: its actions run in time (``program/stage_times.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from tensoropt_torch.config.cluster import Cluster, Level
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.program.stage_schedules import schedules_of
from tensoropt_torch.program.stage_times import StageTimes, Timeline, timeline
from tensoropt_torch.stages import StageGraph

# Of what a part takes; the rest is backward.
FORWARD_SHARE = 1 / 3


def transfer_s(cluster: Cluster, devices: int, num_bytes: float) -> float:
    """Of bytes that a device sends to that of the same number in the next stage, each of which
    has so many."""
    level = level_between(cluster, devices)
    return level.latency_s + num_bytes / level.bandwidth_bytes_per_s


def level_between(cluster: Cluster, devices: int) -> Level:
    """The level over which a device reaches that of the same number in the next stage."""
    reached = 1
    for level in reversed(cluster.levels):
        reached *= level.count
        if devices < reached:
            return level
    return cluster.levels[0]


def timeline_of(plan: StagedPlan) -> Timeline:
    """Of a step."""
    both = [part.plan.time_s / plan.micro_batches for part in plan.parts]
    times = StageTimes(
        tuple(FORWARD_SHARE * seconds for seconds in both),
        tuple((1 - FORWARD_SHARE) * seconds for seconds in both),
        tuple(values for values, _ in plan.sent_s),
        tuple(gradients for _, gradients in plan.sent_s),
    )
    return timeline(
        schedules_of(plan.schedule, plan.stages, plan.micro_batches, plan.chunks), times
    )


def sent_s(
    cluster: Cluster, devices: int, graph: StageGraph, shared: Sequence[bool]
) -> tuple[float, float]:
    """Of what a stage sends in a micro-batch, and of the gradients that come back. ``shared``:
    whether a device has its share of the rows of each value, else it has the whole."""
    values = gradients = 0.0
    for crossing, is_shared in zip(graph.sent, shared, strict=True):
        num_bytes = crossing.num_bytes / (devices if is_shared else 1)
        values += num_bytes
        gradients += num_bytes if crossing.has_gradient else 0.0
    return transfer_s(cluster, devices, values), transfer_s(cluster, devices, gradients)
