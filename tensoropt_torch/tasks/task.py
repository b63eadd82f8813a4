"""The task of an example and options. Functions that are collective agree on it before
they go on."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch import calibration
from tensoropt_torch.config import Cluster, list_presets, load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.planner.memory_limits import default_memory_fraction
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.profiler.hardware_profile import HardwareProfile, is_profile
from tensoropt_torch.runtime.agreement import agree_on_model, is_distributed, on_all_ranks
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.tasks.example import Example
from tensoropt_torch.tasks.options import PlanningOptions


def task_of(example: Example, planning: PlanningOptions) -> PlanningTask:
    """What is planned. Not collective."""
    return _task(example.capture(), planning)


def agreed_task(
    example: Example, planning: PlanningOptions, num_devices: int | None = None
) -> PlanningTask:
    """The same on all ranks, and with the costs of the running job if the plan is for
    all its processes. Collective.

    Raises:
        TensorOptError: on every rank; the model cannot be captured, or differs.
    """
    captured = on_all_ranks(example.capture)
    agree_on_model(captured)
    task = on_all_ranks(lambda: _task(captured, planning))
    count = device_count(task, num_devices)
    if planning.measure and is_distributed() and count == dist.get_world_size():
        given = on_all_ranks(lambda: _given_profile(planning))
        return calibration.measured_task(task, count, device_of_group(), planning.measuring, given)
    return task


def device_count(task: PlanningTask, num_devices: int | None) -> int:
    """By default the processes that run, else all devices of the cluster."""
    if num_devices is not None:
        return num_devices
    return dist.get_world_size() if dist.is_initialized() else task.cluster.num_devices


def cluster_of(cluster: str | Path | Cluster | None) -> Cluster:
    """The description of a cluster; by default that of the device at hand."""
    if isinstance(cluster, Cluster):
        return cluster
    return load_cluster(cluster if cluster is not None else _default_cluster())


def _task(captured: CapturedModel, planning: PlanningOptions) -> PlanningTask:
    profile = _given_profile(planning)
    cluster = profile.cluster if profile else cluster_of(planning.cluster)
    return PlanningTask(
        captured,
        cluster,
        planning.optimizer,
        planning.inputs,
        planning.space,
        planning.max_configs,
        planning.split_spatial,
        measured=profile.curves if profile else (),
        measured_on=profile.num_devices if profile else 0,
        memory_fraction=default_memory_fraction(planning.memory, cluster.device.type),
        overlap=planning.overlap,
        search=planning.search,
    )


def _given_profile(planning: PlanningOptions) -> HardwareProfile | None:
    """The hardware profile that the user gave as the cluster."""
    path = planning.cluster
    if path is None or isinstance(path, Cluster) or not is_profile(Path(path)):
        return None
    return HardwareProfile.load(path)


def _default_cluster() -> str:
    if not torch.cuda.is_available():
        return "cpu"
    name = torch.cuda.get_device_name()
    for preset in ("h200-8", "h100-8"):
        if preset.split("-")[0].upper() in name:
            return preset
    raise TensorOptError(
        f"there is no cluster preset for '{name}'; give cluster= one of "
        f"{', '.join(list_presets())}, or the path of a cluster file"
    )
