"""Descriptions that the user writes: clusters of devices."""

from tensoropt_torch.config.at_hand import Gpu, cluster_of_cpus, cluster_of_gpu
from tensoropt_torch.config.cluster import (
    Cluster,
    Device,
    DeviceType,
    Level,
    device_counts,
    mesh_axes,
    parse_cluster,
)
from tensoropt_torch.config.machine_memory import available_memory, machine_memory
from tensoropt_torch.config.preset_names import PATTERN_WORDS
from tensoropt_torch.config.presets import list_presets, load_cluster

__all__ = [
    "PATTERN_WORDS",
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
