"""The public functions.

Planning alone needs no GPU, no process group and no real parameters::

    frontier = tensoropt_torch.find_frontier(model, (tokens, targets),
                                             cluster="h100-8", num_devices=8)
    plan = frontier.at(memory_bytes=60e9).plan

Training under torchrun::

    tensoropt_torch.init()
    parallel = tensoropt_torch.auto_parallel(model, (tokens, targets))
    optimizer = torch.optim.AdamW(parallel.parameters())
    loss = parallel(tokens, targets)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import calibration, emit, simulate
from tensoropt_torch.calibration import ProfileOptions, Validation, ValidationOptions
from tensoropt_torch.config import Cluster, mesh_axes
from tensoropt_torch.emit import ParallelModule, WeightSource
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import as_module
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner import baselines, explanation, options, tradeoffs
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.explanation import Explanation
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.planner.options import PlanningTask, Predictor, ProfileRow
from tensoropt_torch.planner.tradeoffs import Objective, Tradeoffs
from tensoropt_torch.profiler.hardware_profile import HardwareProfile
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks
from tensoropt_torch.simulate import MemoryProfile, SimulatedPoint, StepSettings, simulate_step
from tensoropt_torch.tasks import (
    Example,
    Model,
    PlanningOptions,
    agreed_task,
    check_group,
    check_sums,
    cluster_of,
    device_count,
    device_of_group,
    model_of,
    task_of,
)

Option = Literal["mini_time", "mini_parallelism"]


def init(backend: str | None = None, timeout_s: float = 600.0) -> torch.device:
    """Join the process group that torchrun describes, and return the device.

    Under torchrun with GPUs the device is the one of the local rank and the
    backend NCCL, else CPU and Gloo. Without torchrun a group of one process is
    made. Does nothing if there is a process group already.
    """
    use_cuda = torch.cuda.is_available() and backend != "gloo"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if use_cuda else None
    if device is not None:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        chosen = backend or ("nccl" if use_cuda else "gloo")
        arguments: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
        if "RANK" not in os.environ:
            arguments |= {"store": torch._C._distributed_c10d.HashStore()}
            arguments |= {"rank": 0, "world_size": 1}
        dist.init_process_group(chosen, **arguments)
    return device or torch.device("cpu")


def find_frontier(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    num_devices: int | None = None,
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> Frontier:
    """The whole cost frontier of a model (paper, section 4).

    Not collective: runs on the calling process alone.

    Args:
        model, args, kwargs, loss_fn, targets: see ``capture``; ``args`` are the
            global batch, values do not matter.
        num_devices: by default the processes that run, else all devices of the
            cluster.
        planning, changes: a ``PlanningOptions`` and changes to its fields, e.g.
            ``cluster="h100-8"``.
    """
    planning = replace(planning or PlanningOptions(), **changes)
    task = task_of(Example(model, args, kwargs, loss_fn, targets), planning)
    return options.find_frontier(task, device_count(task, num_devices))


def find_strategy(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    option: Option = "mini_time",
    memory_limit: float | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    num_devices: int | None = None,
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> Plan:
    """The plan that an option picks.

    Collective if a process group runs: rank 0 searches, all ranks get the same
    plan, or the same error.

    Args:
        option: ``mini_time``, the fastest on ``num_devices``; or
            ``mini_parallelism``, the fastest on the fewest devices that fit.
        memory_limit: bytes per device; by default 90 % of the device, and all of it on
            CPUs with ``memory="simulated"``.
        others: as for ``find_frontier``.

    Raises:
        TensorOptError: on every rank; nothing fits the limit (says the least
            memory, and by the sums also the fewest devices that would do), the
            batch does not divide, the model cannot be captured or differs between ranks.
    """
    planning = replace(planning or PlanningOptions(), **changes)
    example = Example(model, args, kwargs, loss_fn, targets)
    if planning.validate:
        check_group("find_strategy(validate=...)")
    task = agreed_task(example, planning, num_devices)
    count = device_count(task, num_devices)
    if planning.validate:
        runs_here = option == "mini_time" and count == dist.get_world_size()
        task = _validated(example, task, planning, runs_here)
    plan = from_first_rank(lambda: _pick(task, option, count, memory_limit, planning.memory))
    return plan.with_model(task.captured)


def profile(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device_counts: Sequence[int],
    memory_limit: float | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> list[ProfileRow]:
    """The option ``profiling``: for each device count the least step time within
    the memory limit, or the least memory that would do. Not collective."""
    planning = replace(planning or PlanningOptions(), **changes)
    check_sums("profile", planning)
    task = task_of(Example(model, args, kwargs, loss_fn, targets), planning)
    return options.profile(task, device_counts, memory_limit)


def compare(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory_limit: float | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    num_devices: int | None = None,
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> Comparison:
    """The whole frontier next to what data parallelism, ZeRO-3, Megatron,
    Mesh-TensorFlow, OptCNN and ToFu can do on the same costs
    (docs/search.md, Baselines). Not collective."""
    planning = replace(planning or PlanningOptions(), **changes)
    check_sums("compare", planning)
    task = task_of(Example(model, args, kwargs, loss_fn, targets), planning)
    return baselines.compare(task, device_count(task, num_devices), memory_limit)


def explain(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    num_devices: int | None = None,
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> Explanation:
    """For every operator and parameter: its rule, how many configs are considered, what
    is left out and why, and what it costs where it cannot be split over all devices.
    Arguments as for ``find_frontier``. Not collective, searches nothing."""
    planning = replace(planning or PlanningOptions(), **changes)
    task = task_of(Example(model, args, kwargs, loss_fn, targets), planning)
    return explanation.explain(task, device_count(task, num_devices))


def find_tradeoffs(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device_counts: Sequence[int],
    objective: Objective = "money",
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> Tradeoffs:
    """Memory, step time and a third objective over a range of device counts:
    ``money``, ``energy`` or ``device_count``. Not collective.

    Raises:
        TensorOptError: the cluster does not say what a device costs or draws.
    """
    planning = replace(planning or PlanningOptions(), **changes)
    task = task_of(Example(model, args, kwargs, loss_fn, targets), planning)
    return tradeoffs.find_tradeoffs(task, device_counts, objective)


def parallelize(
    model: Model,
    plan: Plan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    device: torch.device | None = None,
    weights: WeightSource | None = None,
    one_process_random: bool = False,
) -> ParallelModule:
    """The module that runs ``plan`` on this rank. Collective.

    The example inputs are needed only for a plan that was loaded from a file or
    made by another process. The values of a model on the meta device come from
    ``weights``, by default from its modules' ``reset_parameters``; no process then
    holds more than its parts of the parameters and one module.

    With ``one_process_random`` dropout and other random operators draw the very
    numbers that the model draws on one process after the same ``torch.manual_seed``;
    all ranks have to call that alike. Every rank draws for whole tensors, so this is for
    tests (docs/runtime.md, Random operators).

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks; or if something on the meta
            device gets no value.
    """
    check_group("parallelize")

    example = Example(model, args, kwargs, loss_fn, targets)
    captured = on_all_ranks(lambda: model_of(plan, example))
    return emit.parallelize(
        model,
        captured,
        plan,
        device or device_of_group(),
        weights=weights,
        one_process_random=one_process_random,
    )


def simulate_memory(
    model: Model,
    plan: Plan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    step: StepSettings | None = None,
    **changes: Any,
) -> MemoryProfile:
    """The peak memory of one rank in a training step under ``plan``, and what it is
    made of (docs/costs.md, Simulated memory). Not collective; no tensor is real.

    Args:
        model, args, kwargs, loss_fn, targets: as for ``parallelize``; inputs are
            needed only for a plan that was loaded from a file.
        step, changes: a ``StepSettings`` and changes to its fields, e.g.
            ``optimizer="sgd"``.

    Raises:
        TensorOptError: the plan was made for another model or batch, or has no
            such rank.
    """
    captured = model_of(plan, Example(model, args, kwargs, loss_fn, targets))
    plan.check_model(captured)
    return simulate_step(plan, captured, replace(step or StepSettings(), **changes))


def profile_hardware(
    cluster: str | Path | Cluster | None = None,
    *,
    options: ProfileOptions | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[HardwareProfile, Path]:
    """Measures the devices, the collectives and the runtime of the running job, and
    keeps that for later jobs on the same hardware and software. Collective.

    Returns the profile and its file, which also serves as ``cluster=`` elsewhere. An
    interrupted measurement goes on where it was.

    Args:
        cluster: what describes memory and levels; by default as for planning.
        options: how much to measure, and where to write it.
        progress: called with steps done, steps in all, and what comes next.

    Raises:
        TensorOptError: on every rank; the file is damaged or cannot be written.
    """
    check_group("profile_hardware")
    described = on_all_ranks(lambda: cluster_of(cluster))
    axes = on_all_ranks(lambda: tuple(mesh_axes(described, dist.get_world_size())))
    return calibration.profile_hardware(described, axes, device_of_group(), options, progress)


def validate(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: ValidationOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    planning: PlanningOptions | None = None,
    **changes: Any,
) -> Validation:
    """Runs random strategies of a model for a few steps each and compares predicted
    with measured step time, network time and peak memory. Collective.

    Args:
        options: how many strategies, steps and passes, the seed, the optimizer.
        progress: called with runs of strategies done and in all.
        others: as for ``find_strategy``; ``args`` are real tensors.

    Raises:
        TensorOptError: on every rank; inputs are on the meta device.
    """
    check_group("validate")
    planning = replace(planning or PlanningOptions(), **changes)
    example = Example(model, args, kwargs, loss_fn, targets)
    task = agreed_task(example, planning, dist.get_world_size())
    return calibration.validate(model, task, example.batch, device_of_group(), options, progress)


def auto_parallel(
    model: Model,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: WeightSource | None = None,
    one_process_random: bool = False,
    **arguments: Any,
) -> ParallelModule:
    """``parallelize`` with the plan of ``find_strategy`` (same arguments)."""
    plan = find_strategy(model, args, kwargs, **arguments)
    return parallelize(model, plan, weights=weights, one_process_random=one_process_random)


def _pick(
    task: PlanningTask, option: str, count: int, limit: float | None, memory: Predictor
) -> Plan:
    by_peaks = memory == "simulated"
    point: FrontierPoint | SimulatedPoint
    if option == "mini_time":
        pick = simulate.mini_time if by_peaks else options.mini_time
        point = pick(task, count, limit)
    elif option == "mini_parallelism":
        pick_count = simulate.mini_parallelism if by_peaks else options.mini_parallelism
        point = pick_count(task, limit)
    else:
        raise TensorOptError(
            f"option '{option}' is not known; choose 'mini_time' or 'mini_parallelism', or call "
            "profile() for 'profiling'"
        )
    return replace(point.plan, captured=None)


def _validated(
    example: Example, task: PlanningTask, planning: PlanningOptions, runs_here: bool
) -> PlanningTask:
    """The task with the memory limit that random strategies suggest and, if it is for
    the running job, with their times. Collective."""
    options = ValidationOptions()
    if planning.validate is not True:
        options = replace(options, strategies=planning.validate)
    model = as_module(example.model)
    found = calibration.validate(model, task, example.batch, device_of_group(), options)
    fraction = found.memory_fraction(planning.memory, task.memory_fraction)
    if runs_here:
        task = calibration.scaled(task, calibration.scales_of(found))
    return replace(task, memory_fraction=fraction)
