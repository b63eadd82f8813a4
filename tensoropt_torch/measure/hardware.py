"""The device and the collectives of the running job, measured into a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from tensoropt_torch.config.cluster import COLLECTIVES, Cluster, Collective, Efficiency
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.machine.collective_times import CollectiveTimes, measure_collectives
from tensoropt_torch.measure.machine.device import measure_device
from tensoropt_torch.measure.machine.key import MachineKey
from tensoropt_torch.progress import Step
from tensoropt_torch.runtime.groups import AxisGroups

# Of the time, for the device; the rest is for collectives.
DEVICE_SHARE = 0.1


class ProfileJournal:
    """A profile that grows: keeps every entry, and tells of it.

    Args:
        profile: without figures, or what an interrupted measurement has left.
        step: is told.
        write: keeps the profile after each entry; called on every rank.
    """

    def __init__(
        self, profile: HardwareProfile, step: Step, write: Callable[[HardwareProfile], None]
    ) -> None:
        self.profile = profile
        self._step = step
        self._write = write

    def begin(self, profile: HardwareProfile) -> None:
        """With the device, and with what was measured before."""
        self.profile = profile
        self._write(profile)
        self._step("collectives", more=1 + len(profile.curves))

    @property
    def known(self) -> CollectiveTimes:
        return {
            (name, axes): [(int(size), seconds) for size, seconds in samples]
            for name, axes, samples in self.profile.curves
        }

    def add(self, collective: Collective, axes: int, curve: list[tuple[int, float]]) -> None:
        samples = tuple((float(size), seconds) for size, seconds in curve)
        self.profile = self.profile.with_curve((collective, axes, samples))
        self._write(self.profile)
        self._step(f"{collective} over axis set {axes:b}")


def measure_profile(
    journal: ProfileJournal,
    resumed: HardwareProfile | None,
    axis_sets: Sequence[int],
    device: torch.device,
    budget_s: float,
) -> HardwareProfile:
    """The profile of the journal with the device and with collectives over ``axis_sets``;
    what an interrupted measurement has left is not measured again. Collective, and equal on
    all ranks; up to ``max_bytes`` of the profile, within ``budget_s`` seconds."""
    start = journal.profile
    groups = AxisGroups([size for size, _ in start.mesh_axes], device.type)
    groups.create(axis_sets)  # this also makes the host as it is when a model trains
    if resumed is None:
        measured = measure_cluster(start.cluster, device, DEVICE_SHARE * budget_s)
        resumed = replace(start, cluster=measured)
    journal.begin(resumed)
    if axis_sets:
        left_s = (1 - DEVICE_SHARE) * budget_s
        measure_collectives(groups, axis_sets, start.max_bytes, left_s, COLLECTIVES, journal)
    groups.close()
    return journal.profile


def measure_cluster(cluster: Cluster, device: torch.device, budget_s: float) -> Cluster:
    """The description with the device's speeds as measured while all ranks are
    busy. Collective; equal on all ranks."""
    speed = measure_device(device, budget_s)
    # Operators as short as can be: on other devices than CPUs the host is busy, not the device.
    of_host = device.type != "cpu"
    measured = replace(
        cluster.device,
        flops_per_s={**cluster.device.flops_per_s, **speed.matmul_flops_per_s},
        memory_bandwidth_bytes_per_s=speed.copy_bytes_per_s,
        launch_overhead_s=cluster.device.launch_overhead_s if of_host else speed.launch_s,
        host_launch_s=speed.launch_s if of_host else 0.0,
        efficiency=Efficiency(1.0, 1.0, "included in what is measured"),
        source="measured on the running job",
    )
    return replace(cluster, device=measured)


def resumable(path: Path, start: HardwareProfile, *, fresh: bool) -> HardwareProfile | None:
    """What an earlier run has left in a file for the same job, unless it is measured
    ``fresh``.

    Raises:
        TensorOptError: the file is damaged, or of something else.
    """
    if fresh or not path.exists():
        return None
    found = HardwareProfile.load(path)
    check_fits(found, start.machine, str(path))
    same = found.mesh_axes == start.mesh_axes and found.max_bytes == start.max_bytes
    return found if same else None


def check_fits(profile: HardwareProfile, job: MachineKey, where: str) -> None:
    """Raises TensorOptError if a profile was measured on something else."""
    differences = profile.machine.differences(job)
    if differences:
        raise TensorOptError(
            f"hardware profile '{where}' was measured on something else "
            f"({'; '.join(differences)}); measure this job with 'tensoropt profile-hardware'"
        )
