"""Measuring a hardware profile on the running job, and finding one that fits it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch.calibration.axis_sets import sets_of_collectives
from tensoropt_torch.calibration.overheads import fit_runtime
from tensoropt_torch.config.cluster import COLLECTIVES, Cluster, Collective, Efficiency
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger
from tensoropt_torch.profiler.collectives import (
    CollectiveTimes,
    measure_collectives,
)
from tensoropt_torch.profiler.device import measure_device
from tensoropt_torch.profiler.hardware_profile import HardwareProfile, profile_path
from tensoropt_torch.profiler.store import MachineKey, machine_key
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.host import host_settings

log = get_logger(__name__)

MeshAxes = tuple[tuple[int, int], ...]

# Steps done and steps in all, and what comes next.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ProfileOptions:
    """How much to measure.

    Attributes:
        max_bytes: the largest size of a collective.
        budget_s: time for the collectives; a small one gives fewer sizes.
        device_budget_s: time for the device's own figures.
        fresh: measure again what an earlier run has measured.
        output: the file to write; by default one of the user's cache.
    """

    max_bytes: int = 64 << 20
    budget_s: float = 120.0
    device_budget_s: float = 10.0
    fresh: bool = False
    output: Path | None = None


def profile_hardware(
    cluster: Cluster,
    mesh_axes: MeshAxes,
    device: torch.device,
    options: ProfileOptions | None = None,
    progress: Progress | None = None,
) -> tuple[HardwareProfile, Path]:
    """Measures the job's devices, collectives and runtime; collective, and equal on
    all ranks. Each entry is written when it is measured, so that an interrupted run
    goes on where it was. Returns the profile and its file.

    Raises:
        TensorOptError: on every rank, if the file is damaged or cannot be written.
    """
    options = options or ProfileOptions()
    sizes = [size for size, _ in mesh_axes]
    key = key_of_job(device, sizes)
    path = options.output or from_first_rank(lambda: profile_path(key))
    start = HardwareProfile(key, cluster, mesh_axes, max_bytes=options.max_bytes)
    found = from_first_rank(lambda: (_resumable(path, start, options),))[0]
    if found is not None and found.complete:
        log.info("measured before, in '%s': %r", path, found)
        return found, path
    found_sets = sets_of_collectives(mesh_axes)
    found_sets.warn("collectives")
    axis_sets = found_sets.chosen
    groups = AxisGroups(sizes, device.type)
    groups.create(axis_sets)  # this also makes the host as it is when a model trains
    report = _Reporter(progress, len(axis_sets) * len(COLLECTIVES) + 2)
    if found is None:
        report("device")
        measured = measure_cluster(cluster, device, options.device_budget_s)
        found = replace(start, cluster=measured)
    journal = _ProfileJournal(found, path, report)
    on_all_ranks(journal.save)
    if axis_sets:
        report.done = 1 + len(found.curves)
        measure_collectives(
            groups, axis_sets, options.max_bytes, options.budget_s, COLLECTIVES, journal
        )
    groups.close()
    report("runtime")
    profile = _with_overheads(journal.profile, device)
    on_all_ranks(lambda: _write(profile, path))
    log.info("written to '%s': %r", path, profile)
    return profile, path


def key_of_job(device: torch.device, axes: Sequence[int]) -> MachineKey:
    """What the running job's measurements are good for; collective.

    Raises:
        TensorOptError: on every rank, if the environment asks the host of one for what is
            not permitted there.
    """
    host = on_all_ranks(lambda: host_settings(device.type))
    return machine_key(device, tuple(axes), **asdict(host))


def find_profile(mesh_axes: MeshAxes, device: torch.device) -> HardwareProfile | None:
    """The complete profile of the running job in the user's cache. Collective.

    Raises:
        TensorOptError: on every rank, if the file is damaged.
    """
    key = key_of_job(device, [size for size, _ in mesh_axes])

    def load() -> tuple[HardwareProfile | None]:
        path = profile_path(key)
        if not path.exists():
            return (None,)
        profile = HardwareProfile.load(path)
        check_fits(profile, key, str(path))
        return (profile if profile.complete else None,)

    return from_first_rank(load)[0]


def check_fits(profile: HardwareProfile, job: MachineKey, where: str) -> None:
    """Raises TensorOptError if a profile was measured on something else."""
    differences = profile.machine.differences(job)
    if differences:
        raise TensorOptError(
            f"hardware profile '{where}' was measured on something else "
            f"({'; '.join(differences)}); measure this job with 'tensoropt profile-hardware'"
        )


def measure_cluster(cluster: Cluster, device: torch.device, budget_s: float) -> Cluster:
    """The description with the device's speeds as measured while all ranks are
    busy. Collective; equal on all ranks."""
    speed = measure_device(device, budget_s)
    measured = replace(
        cluster.device,
        flops_per_s={**cluster.device.flops_per_s, **speed.matmul_flops_per_s},
        memory_bandwidth_bytes_per_s=speed.copy_bytes_per_s,
        launch_overhead_s=speed.launch_overhead_s,
        efficiency=Efficiency(1.0, 1.0, "included in what is measured"),
        source="measured on the running job",
    )
    return replace(cluster, device=measured)


def _resumable(
    path: Path, start: HardwareProfile, options: ProfileOptions
) -> HardwareProfile | None:
    """What an earlier run has left for the same job."""
    if options.fresh or not path.exists():
        return None
    found = HardwareProfile.load(path)
    check_fits(found, start.machine, str(path))
    same = found.mesh_axes == start.mesh_axes and found.max_bytes == start.max_bytes
    return found if same else None


def _with_overheads(profile: HardwareProfile, device: torch.device) -> HardwareProfile:
    runtime = fit_runtime(profile, device)
    cluster = replace(profile.cluster, device=replace(profile.cluster.device, runtime=runtime))
    return replace(profile, cluster=cluster, complete=True)


def _write(profile: HardwareProfile, path: Path) -> None:
    if dist.get_rank() == 0:
        profile.save(path)


class _Reporter:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self.done = 0
        self._progress = progress
        self._total = total

    def __call__(self, what: str) -> None:
        log.info("measuring %d of %d: %s", self.done + 1, self._total, what)
        if self._progress is not None:
            self._progress(self.done, self._total, what)
        self.done += 1


class _ProfileJournal:
    """Keeps every entry in the profile and in its file."""

    def __init__(self, profile: HardwareProfile, path: Path, report: _Reporter) -> None:
        self.profile = profile
        self._path = path
        self._report = report

    @property
    def known(self) -> CollectiveTimes:
        return {
            (name, axes): [(int(size), seconds) for size, seconds in samples]
            for name, axes, samples in self.profile.curves
        }

    def add(self, collective: Collective, axes: int, curve: list[tuple[int, float]]) -> None:
        samples = tuple((float(size), seconds) for size, seconds in curve)
        self.profile = self.profile.with_curve((collective, axes, samples))
        self._report(f"{collective} over axis set {axes:b}")
        on_all_ranks(self.save)

    def save(self) -> None:
        _write(self.profile, self._path)
