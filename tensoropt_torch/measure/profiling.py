"""Measuring a hardware profile on the running job, and finding one that fits it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch.config.cluster import COLLECTIVES, Cluster
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.hardware import (
    ProfileJournal,
    check_fits,
    measure_profile,
    resumable,
)
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile, profile_path
from tensoropt_torch.measure.machine.axis_sets import MeshAxes, sets_of_collectives
from tensoropt_torch.measure.machine.key import key_of_job
from tensoropt_torch.measure.runs.overheads import RUNTIME_PARTS, fit_runtime
from tensoropt_torch.progress import Tell, progress
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks

log = get_logger(__name__)


@dataclass(frozen=True)
class ProfileOptions:
    """How much to measure.

    Attributes:
        max_bytes: the largest size of a collective.
        budget_s: seconds for the device and the collectives; a small one gives fewer
            sizes. What the runtime takes is measured after that, for about a minute.
        fresh: measure again what an earlier run has measured.
        output: the file to write; by default one of the user's cache.
    """

    max_bytes: int = 64 << 20
    budget_s: float = 120.0
    fresh: bool = False
    output: Path | None = None


def profile_hardware(
    cluster: Cluster,
    mesh_axes: MeshAxes,
    device: torch.device,
    options: ProfileOptions | None = None,
    tell: Tell | None = None,
) -> tuple[HardwareProfile, Path]:
    """Measures the job's devices, collectives and runtime; collective, and equal on
    all ranks. Each entry is written when it is measured, so that an interrupted run
    goes on where it was. Returns the profile and its file.

    Raises:
        TensorOptError: on every rank, if the file is damaged or cannot be written.
    """
    options = options or ProfileOptions()
    axes = tuple(mesh_axes)
    key = key_of_job(device, [size for size, _ in axes])
    path = options.output or from_first_rank(lambda: profile_path(key))
    start = HardwareProfile(key, cluster, axes, max_bytes=options.max_bytes)
    found = from_first_rank(lambda: (resumable(path, start, fresh=options.fresh),))[0]
    if found is not None and found.complete:
        log.info("measured before, in '%s': %r", path, found)
        return found, path
    sets = sets_of_collectives(axes)
    sets.warn("collectives")
    total = 1 + len(sets.chosen) * len(COLLECTIVES) + RUNTIME_PARTS
    with progress("measuring the hardware", total, tell=tell) as step:
        step("device", more=0)
        journal = ProfileJournal(start, step, lambda profile: _write(profile, path))
        profile = measure_profile(journal, found, sets.chosen, device, options.budget_s)
        device_of = replace(profile.cluster.device, runtime=fit_runtime(profile, device, step))
        cluster = replace(profile.cluster, device=device_of)
        profile = replace(profile, cluster=cluster, complete=True)
        _write(profile, path)
    log.info("written to '%s': %r", path, profile)
    return profile, path


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


def _write(profile: HardwareProfile, path: Path) -> None:
    """Rank 0 does it; its errors reach all."""

    def write() -> None:
        if dist.get_rank() == 0:
            profile.save(path)

    on_all_ranks(write)
