"""What is sent between the stages of a plan, how long that takes, and what stages hold of it."""

from __future__ import annotations

from collections.abc import Sequence

from tensoropt_torch.config.cluster import Cluster, Level
from tensoropt_torch.stages import StageGraph


def transfer_s(cluster: Cluster, devices: int, num_bytes: float) -> float:
    """Of bytes that a device sends to that of the same number in the next stage, each of which
    has so many."""
    level = level_between(cluster, devices)
    return level.latency_s + num_bytes / level.bandwidth_bytes_per_s


def held_bytes(in_flight: int, micro_batches: int, received: float, sent: float) -> float:
    """What a device holds of values of so many bytes that a micro-batch takes over the cuts of a
    stage: what it receives till it has done its backward, with that of the next one, which arrives
    ahead; what it sends till the gradient has come back."""
    return min(in_flight + 1, micro_batches) * received + in_flight * sent


def level_between(cluster: Cluster, devices: int) -> Level:
    """The level over which a device reaches that of the same number in the next stage."""
    reached = 1
    for level in reversed(cluster.levels):
        reached *= level.count
        if devices < reached:
            return level
    return cluster.levels[0]


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
