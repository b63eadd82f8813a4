"""What one rank runs on: its mesh, its process groups and its device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh

from tensoropt_torch.runtime.groups import AxisGroups


@dataclass(frozen=True)
class RankContext:
    """The base mesh and its process groups on this rank.

    Several modules may share one, so that groups are made once.
    """

    sizes: tuple[int, ...]
    device: torch.device
    mesh: DeviceMesh
    groups: AxisGroups

    @property
    def num_devices(self) -> int:
        """The product of the mesh axes."""
        return math.prod(self.sizes)

    @staticmethod
    def make(
        sizes: Sequence[int], device: torch.device, *, own_groups: bool = False
    ) -> RankContext:
        """Collective. A single device is a mesh with one axis of size 1. ``own_groups`` are of
        nobody else."""
        groups = AxisGroups(sizes, device.type, of_their_own=own_groups)
        return RankContext(tuple(sizes), device, groups.mesh(), groups)
