"""The task of an example and options. Functions that are collective agree on it before
they go on."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from tensoropt_torch import measure
from tensoropt_torch.batches import BatchSplits, batch_rows, doubled
from tensoropt_torch.checks import check_whole
from tensoropt_torch.config import (
    Cluster,
    Gpu,
    cluster_of_cpus,
    cluster_of_gpu,
    load_cluster,
    machine_memory,
    mesh_axes,
)
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure import MeasureOptions, ValidationOptions
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile, is_profile
from tensoropt_torch.plan import constraints_of, stage_pins_of
from tensoropt_torch.planner.memory_limits import default_memory_fraction
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask, handed_over
from tensoropt_torch.progress import progress
from tensoropt_torch.runtime.agreement import agree_on_model, is_distributed, on_all_ranks
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.tasks.example import Example
from tensoropt_torch.tasks.options import PlanningOptions, input_modes

log = get_logger(__name__)

# Options of which the task has what follows from them for its model and cluster.
WORKED_OUT = frozenset({"cluster", "inputs", "recompute"})


def task_of(
    example: Example, planning: PlanningOptions, counts: Sequence[int | None] = ()
) -> PlanningTask:
    """What is planned, on these numbers of devices. Not collective.

    Raises:
        TensorOptError: the cluster cannot lay out so many, which is found out before the model
            is captured.
    """
    return _task(_captured(example, planning, counts), planning)


def agreed_task(
    example: Example, planning: PlanningOptions, num_devices: int | None = None
) -> PlanningTask:
    """The same on all ranks, and with the costs of the running job if the plan is for
    all its processes. Collective.

    Raises:
        TensorOptError: on every rank; the model cannot be captured, or differs.
    """
    task = captured_task(example, planning, num_devices)
    count = device_count(task, num_devices)
    if not measures(planning, count):
        return task
    task = profiled_task(task, planning)
    return measure.with_operators(task, count, device_of_group(), planning.measuring)


def captured_task(
    example: Example, planning: PlanningOptions, num_devices: int | None = None
) -> PlanningTask:
    """The same on all ranks, by the description of the cluster. Collective.

    Raises:
        TensorOptError: on every rank; the cluster cannot lay out so many devices, or the model
            cannot be captured, or differs.
    """
    captured = on_all_ranks(lambda: _captured(example, planning, [num_devices]))
    agree_on_model(captured)
    return on_all_ranks(lambda: _task(captured, planning))


def profiled_task(task: PlanningTask, planning: PlanningOptions) -> PlanningTask:
    """With the device and the collectives of the running job, for all its processes.
    Collective, and equal on all ranks.

    Raises:
        TensorOptError: on every rank; a hardware profile is damaged, or of something else.
    """
    given = on_all_ranks(lambda: _given_profile(planning))
    count, device = dist.get_world_size(), device_of_group()
    return measure.profiled_task(task, count, device, planning.measuring, given)


def measures(planning: PlanningOptions, count: int) -> bool:
    """Whether a plan for so many devices takes the costs of the running job."""
    return planning.measure and is_distributed() and count == dist.get_world_size()


def device_count(task: PlanningTask, num_devices: int | None) -> int:
    """By default the processes that run, else all devices of the cluster."""
    if num_devices is not None:
        return num_devices
    return dist.get_world_size() if dist.is_initialized() else task.cluster.num_devices


def cluster_of(cluster: str | Path | Cluster | None) -> Cluster:
    """The description of a cluster; by default that of the device at hand."""
    if isinstance(cluster, Cluster):
        return cluster
    return _cluster_at_hand() if cluster is None else load_cluster(cluster)


def _captured(
    example: Example, planning: PlanningOptions, counts: Sequence[int | None]
) -> CapturedModel:
    """The model as a graph, if the cluster can lay out so many devices."""
    given = [count for count in counts if count is not None]
    if given:
        profile = _given_profile(planning)
        cluster = profile.cluster if profile else cluster_of(planning.cluster)
        for count in given:
            mesh_axes(cluster, count)
    with progress("capturing the model", ticking=True):
        return example.capture()


def _task(captured: CapturedModel, planning: PlanningOptions) -> PlanningTask:
    _check(planning)
    profile = _given_profile(planning)
    cluster = profile.cluster if profile else cluster_of(planning.cluster)
    tensors = [source.names[0] for source in captured.inputs if source.kind == "input"]
    inputs, whole_inputs, input_dims = input_modes(planning.inputs, tensors)
    _check_dims(captured, input_dims)
    return PlanningTask(
        captured,
        cluster,
        **handed_over(planning, PlanningTask, WORKED_OUT),
        inputs=inputs,
        whole_inputs=whole_inputs,
        input_dims=input_dims,
        recompute=_recomputes(captured, planning),
        measured=profile.curves if profile else (),
        measured_on=profile.num_devices if profile else 0,
        memory_fraction=default_memory_fraction(planning.memory, cluster.device.type),
        constraints=constraints_of(planning.pin, planning.forbid),
        stage_pins=stage_pins_of(planning.pin),
        in_micro_batches=tuple(_in_micro_batches(captured, planning, whole_inputs, input_dims)),
    )


def _check_dims(captured: CapturedModel, dims: Sequence[tuple[str, int]]) -> None:
    """Raises TensorOptError if an input has no dim in which it is said to have its rows."""
    shapes = {
        s.names[0]: s.placeholder.meta["val"].shape for s in captured.inputs if s.kind == "input"
    }
    for name, dim in dims:
        if dim >= len(shapes[name]):
            raise TensorOptError(
                f"inputs['{name}']={dim} is not allowed: the input has the shape "
                f"{list(shapes[name])}; name one of its dims, or 'replicated'"
            )


def _in_micro_batches(
    captured: CapturedModel,
    planning: PlanningOptions,
    whole_inputs: Sequence[str],
    input_dims: Sequence[tuple[str, int]],
) -> Iterator[CapturedModel]:
    """The model in 2, 4, ... micro-batches, as many as the batch has rows for."""
    most = planning.max_micro_batches
    if most > 1 and input_dims:
        name, dim = input_dims[0]
        raise TensorOptError(
            f"max_micro_batches={most} is not supported with inputs['{name}']={dim}: micro-batches "
            "are cut along dim 0; leave one of them out"
        )
    rows = batch_rows(captured, whole_inputs)
    counts = [count for count in doubled(most) if count == 2 or rows % count == 0]
    if not counts:
        return
    splits = BatchSplits(captured, whole_inputs)
    with progress("writing the step in micro-batches", len(counts), ticking=True) as done:
        for count in counts:
            done(f"{count} micro-batches", more=0)
            yield splits.of(count)
            done()


def _recomputes(captured: CapturedModel, planning: PlanningOptions) -> bool:
    """What the options say, or the model."""
    asked = captured.checkpoints > 0
    if asked:
        how = "is not recomputed" if planning.recompute is False else "is recomputed where it pays"
        log.info("%d calls are checkpointed in the model: %s", captured.checkpoints, how)
    return asked if planning.recompute is None else planning.recompute


def _check(planning: PlanningOptions) -> None:
    """Raises TensorOptError for values of a wrong kind."""
    check_whole("max_micro_batches", planning.max_micro_batches, least=1)
    check_whole("max_stages", planning.max_stages, least=1)
    pins = stage_pins_of(planning.pin)
    if pins and not pins.allows_up_to(planning.max_stages):
        raise TensorOptError(
            f"{pins} with max_stages={planning.max_stages}: give max_stages="
            f"{pins.number or len(pins.begins) + 1} or more"
        )
    if planning.max_configs is not None:
        check_whole("max_configs", planning.max_configs, least=1)
    for name, kind in (("search", SearchSettings), ("measuring", MeasureOptions)):
        value = getattr(planning, name)
        if not isinstance(value, kind):
            raise TensorOptError(
                f"{name} = {value!r} is not allowed: it must be a {kind.__name__}(...)"
            )
    check_whole("measuring.finalists", planning.measuring.finalists, least=1)
    if not isinstance(planning.validate, int | ValidationOptions):
        raise TensorOptError(
            f"validate = {planning.validate!r} is not allowed: it must be True, False, a number of "
            "strategies, or ValidationOptions(...)"
        )


def _given_profile(planning: PlanningOptions) -> HardwareProfile | None:
    """The hardware profile that the user gave as the cluster."""
    path = planning.cluster
    if not isinstance(path, (str, Path)) or not is_profile(Path(path)):
        return None
    return HardwareProfile.load(path)


def _cluster_at_hand() -> Cluster:
    """That of the GPUs of this process's machine, else of its CPUs. A plan for CPUs that
    no job runs on knows no machine: it takes the preset as it is."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if torch.cuda.is_available():
        per_machine = torch.cuda.device_count()
        return cluster_of_gpu(_gpu_at_hand(), per_machine, math.ceil(world / per_machine))
    if not dist.is_initialized():
        return load_cluster("cpu")
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    memory_bytes, source = machine_memory()
    return cluster_of_cpus(memory_bytes, processes, source)


def _gpu_at_hand() -> Gpu:
    found = torch.cuda.get_device_properties(torch.cuda.current_device())

    def hertz(name: str) -> float | None:
        kilohertz = getattr(found, name, None)
        return 1e3 * kilohertz if kilohertz else None

    return Gpu(
        found.name,
        found.total_memory,
        found.multi_processor_count,
        (found.major, found.minor),
        hertz("clock_rate"),
        hertz("memory_clock_rate"),
        getattr(found, "memory_bus_width", None),
    )
