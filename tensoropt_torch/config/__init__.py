"""Descriptions that the user writes: clusters of devices."""

from tensoropt_torch.config.at_hand import Gpu, cluster_of_cpus, cluster_of_gpu
from tensoropt_torch.config.cluster import (
    Cluster,
    Device,
    DeviceType,
    Level,
    device_counts,
    list_presets,
    load_cluster,
    mesh_axes,
    parse_cluster,
)
from tensoropt_torch.config.machine_memory import available_memory, machine_memory

__all__ = [
    "Cluster",
    "Device",
    "DeviceType",
    "Gpu",
    "Level",
    "available_memory",
    "cluster_of_cpus",
    "cluster_of_gpu",
    "device_counts",
    "list_presets",
    "load_cluster",
    "machine_memory",
    "mesh_axes",
    "parse_cluster",
]
