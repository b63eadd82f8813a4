"""What the public functions plan: a model with an example of its global batch, and how.
Those of them that are collective agree on it before they go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import calibration
from tensoropt_torch.calibration import MeasureOptions
from tensoropt_torch.calibration.validation import Batch
from tensoropt_torch.config import Cluster, list_presets, load_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import InputMode, Plan
from tensoropt_torch.planner.options import (
    PlanningTask,
    Predictor,
    SearchSettings,
    default_memory_fraction,
)
from tensoropt_torch.profiler.hardware_profile import HardwareProfile, is_profile
from tensoropt_torch.runtime.agreement import agree_on_model, is_distributed, on_all_ranks

# A module, one of ATen calls included, or a program that was exported already.
Model = nn.Module | torch.export.ExportedProgram


@dataclass(frozen=True)
class PlanningOptions:
    """How to plan; the same for all functions that plan.

    Attributes:
        cluster: a preset, the path of a cluster file, or a description; by
            default that of the GPU at hand, else ``"cpu"``.
        optimizer: ``sgd``, ``momentum``, ``adam``, ``adamw``, ...: how many
            state tensors each parameter has.
        inputs: ``"replicated"``: every rank is called with the same global
            batch; ``"sharded"``: with its own share of it (dim 0).
        space: ``"ordered"``, or ``"full"`` which tells axes of one level apart.
        max_configs: configs of each operator that are considered; what has to be
            left out on many devices are those that split the devices in many ways.
            By default 200 up to 16 devices and 100 on more.
        split_spatial: spatial dims of convolutions and pooling may be split, and
            neighbours exchange borders. More to search; worth it for images that are
            large and batches that are small.
        measure: measure the device and the collectives of the running process
            group, and operators on it, instead of taking them from the cluster's
            description.
        measuring: for how long.
        overlap: reshards of parameters and of their gradients run while the device
            computes, and take memory meanwhile. By default where the hardware profile says
            that it makes steps faster, and on GPUs without a profile.
        memory: what a memory limit is compared with: ``"sums"``, the sums of the search,
            or ``"simulated"``, simulated peaks of rank 0, which are nearer to what a step
            takes; seconds more for every point that is looked at.
        validate: first run so many random strategies for a few steps (True: 20), and
            set the default memory limit by how well they were predicted; and, for
            ``mini_time`` on all processes that run, scale all times.
        search: error bound, algorithm, threads.
    """

    cluster: str | Path | Cluster | None = None
    optimizer: str = "adamw"
    inputs: InputMode = "replicated"
    space: Literal["ordered", "full"] = "ordered"
    max_configs: int | None = None
    split_spatial: bool = False
    overlap: bool | None = None
    memory: Predictor = "sums"
    measure: bool = True
    measuring: MeasureOptions = field(default_factory=MeasureOptions)
    validate: bool | int = False
    search: SearchSettings = field(default_factory=SearchSettings)


@dataclass(frozen=True)
class Example:
    """A model with an example of its global batch; see ``capture``."""

    model: Model
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    loss_fn: Callable[..., torch.Tensor] | None = None
    targets: Sequence[Any] = ()

    def capture(self) -> CapturedModel:
        """The model as a graph."""
        return capture(
            self.model, self.args, self.kwargs, loss_fn=self.loss_fn, targets=self.targets
        )

    @property
    def batch(self) -> Batch:
        """The arguments of the captured model."""
        return (*self.args, *self.targets), dict(self.kwargs or {})


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


def model_of(plan: Plan, example: Example) -> CapturedModel:
    """The model that the plan was made for, captured again if it is not at hand."""
    if plan.captured is not None:
        return plan.captured
    if not example.args and not example.kwargs and isinstance(example.model, nn.Module):
        raise TensorOptError(
            "the plan was loaded without its model; give example inputs of the global batch: "
            "parallelize(model, plan, args)"
        )
    return example.capture()


def device_count(task: PlanningTask, num_devices: int | None) -> int:
    """By default the processes that run, else all devices of the cluster."""
    if num_devices is not None:
        return num_devices
    return dist.get_world_size() if dist.is_initialized() else task.cluster.num_devices


def device_of_group() -> torch.device:
    """Where this process computes."""
    if "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def check_group(function: str) -> None:
    """Raises TensorOptError unless a process group runs."""
    if not dist.is_initialized():
        raise TensorOptError(
            f"{function} needs a process group; call tensoropt_torch.init() first, under torchrun "
            "for more than one process"
        )


def check_sums(function: str, planning: PlanningOptions) -> None:
    """Raises TensorOptError if peaks shall be simulated where only sums are compared."""
    if planning.memory != "sums":
        raise TensorOptError(
            f"{function} compares the memory limit with sums, not with memory='{planning.memory}'; "
            "leave it out, or give it to find_strategy"
        )


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
