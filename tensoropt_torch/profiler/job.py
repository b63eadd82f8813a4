"""Costs of the job that runs: its device and its collectives, for planning."""

from __future__ import annotations

from dataclasses import replace

import torch

from tensoropt_torch.config.cluster import Cluster, Efficiency
from tensoropt_torch.profiler.collectives import GroupsByAxes, measure_collectives
from tensoropt_torch.profiler.device import measure_device

MAX_BYTES = 32 << 20
BUDGET_S = 6.0
DEVICE_BUDGET_S = 2.0

# As plan.MeasuredCurve: (collective, axis set, ((bytes, seconds), ...)).
Curves = tuple[tuple[str, int, tuple[tuple[float, float], ...]], ...]


def measure_cluster(cluster: Cluster, device: torch.device) -> Cluster:
    """The description with the device's speeds as measured while all ranks are
    busy. Collective; equal on all ranks."""
    speed = measure_device(device, DEVICE_BUDGET_S)
    measured = replace(
        cluster.device,
        flops_per_s={**cluster.device.flops_per_s, **speed.matmul_flops_per_s},
        memory_bandwidth_bytes_per_s=speed.copy_bytes_per_s,
        launch_overhead_s=speed.launch_overhead_s,
        efficiency=Efficiency(1.0, 1.0, "included in what is measured"),
        source="measured on the running job",
    )
    return replace(cluster, device=measured)


def measure_curves(groups: GroupsByAxes, axis_sets: list[int]) -> Curves:
    """Times of all collectives over the axis sets. Collective; equal on all ranks."""
    times = measure_collectives(groups, axis_sets, MAX_BYTES, BUDGET_S)
    return tuple(
        (name, axes, tuple((float(size), seconds) for size, seconds in samples))
        for (name, axes), samples in sorted(times.items())
    )
