"""Descriptions that the user writes: clusters of devices."""

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

__all__ = [
    "Cluster",
    "Device",
    "DeviceType",
    "Level",
    "device_counts",
    "list_presets",
    "load_cluster",
    "mesh_axes",
    "parse_cluster",
]
