"""The costs of a job that has no hardware profile: what some seconds of measuring give. They
are kept, so that the next job on the same machines plans with the same costs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from tensoropt_torch.config.cluster import COLLECTIVES, Cluster
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.hardware import ProfileJournal, measure_profile, resumable
from tensoropt_torch.measure.kept.files import home, is_written, read_or
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.machine.axis_sets import MeshAxes, sets_of_collectives
from tensoropt_torch.measure.machine.collective_times import FACTORS
from tensoropt_torch.measure.machine.key import key_of_job
from tensoropt_torch.progress import progress
from tensoropt_torch.runtime.agreement import from_first_rank

log = get_logger(__name__)

MEASURED_AGAIN = "device and collectives are measured again"


def quick_profile(
    cluster: Cluster,
    mesh_axes: MeshAxes,
    device: torch.device,
    max_bytes: int,
    budget_s: float,
    *,
    fresh: bool = False,
) -> HardwareProfile:
    """Device and collectives, up to ``max_bytes`` and within ``budget_s`` seconds, or, unless
    they are measured ``fresh``, what an earlier job has measured of the same description within
    the same bounds. Collective, and equal on all ranks. A file that cannot be read or written
    is a warning of the log."""
    axes = tuple(mesh_axes)
    key = key_of_job(device, [size for size, _ in axes])
    start = HardwareProfile(key, cluster, axes, max_bytes=max_bytes)
    path = from_first_rank(lambda: _path(start, budget_s))
    load = partial(resumable, path, start, fresh=fresh)
    found = from_first_rank(lambda: (read_or(None, load, MEASURED_AGAIN),))[0]
    if found is not None:
        log.info("measured before for some seconds, in '%s': %r", path, found)
        return found
    sets = sets_of_collectives(axes)
    sets.warn("collectives")
    what = f"measuring the device, and collectives over {len(sets.chosen)} sets of mesh axes"
    total = 1 + len(sets.chosen) * len(COLLECTIVES)
    with progress(what, total, at_most_s=budget_s) as step:
        journal = ProfileJournal(start, step, lambda _: None)
        profile = measure_profile(journal, None, sets.chosen, device, budget_s)
    profile = replace(profile, complete=True)
    from_first_rank(lambda: is_written(partial(profile.save, path), "what was measured"))
    return profile


def _path(start: HardwareProfile, budget_s: float) -> Path:
    """Where what is measured under these conditions is kept."""
    text = f"{start.to_json()} {budget_s} {FACTORS}"
    return home() / "quick" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
