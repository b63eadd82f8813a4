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
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import emit
from tensoropt_torch.config import Cluster, list_presets, load_cluster
from tensoropt_torch.emit import ParallelModule, WeightSource
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, capture
from tensoropt_torch.plan import InputMode, Plan
from tensoropt_torch.planner import baselines, options, tradeoffs
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.options import PlanningTask, ProfileRow, SearchSettings
from tensoropt_torch.planner.tradeoffs import Objective, Tradeoffs
from tensoropt_torch.profiler.job import measure_cluster, measure_curves
from tensoropt_torch.runtime.agreement import (
    agree_or_raise,
    from_first_rank,
    is_distributed,
    on_all_ranks,
)
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.simulate import MemoryProfile, StepSettings, simulate_step

Option = Literal["mini_time", "mini_parallelism"]


@dataclass(frozen=True)
class PlanningOptions:
    """How to plan; the same for all functions of this module.

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
        measure: measure the device and the collectives of the running process
            group instead of taking them from the cluster's description.
        search: error bound, algorithm, threads.
    """

    cluster: str | Path | Cluster | None = None
    optimizer: str = "adamw"
    inputs: InputMode = "replicated"
    space: Literal["ordered", "full"] = "ordered"
    max_configs: int | None = None
    measure: bool = True
    search: SearchSettings = field(default_factory=SearchSettings)


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
    model: nn.Module,
    args: Sequence[Any],
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
    captured = capture(model, args, kwargs, loss_fn=loss_fn, targets=targets)
    task = _task(captured, planning)
    return options.find_frontier(task, _device_count(task, num_devices))


def find_strategy(
    model: nn.Module,
    args: Sequence[Any],
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
        memory_limit: bytes per device; by default 90 % of the device.
        others: as for ``find_frontier``.

    Raises:
        TensorOptError: on every rank; nothing fits the limit (says the least
            memory and the fewest devices that would do), the batch does not
            divide, the model cannot be captured or differs between ranks.
    """
    planning = replace(planning or PlanningOptions(), **changes)
    captured = on_all_ranks(lambda: capture(model, args, kwargs, loss_fn=loss_fn, targets=targets))
    agree_or_raise("model", captured.fingerprint, "pass the same model and inputs on every rank")
    task = on_all_ranks(lambda: _task(captured, planning))
    count = _device_count(task, num_devices)
    if planning.measure and is_distributed() and count == dist.get_world_size():
        task = _measured(task, count)
    plan = from_first_rank(lambda: _pick(task, option, count, memory_limit))
    return plan.with_model(captured)


def profile(
    model: nn.Module,
    args: Sequence[Any],
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
    captured = capture(model, args, kwargs, loss_fn=loss_fn, targets=targets)
    return options.profile(_task(captured, planning), device_counts, memory_limit)


def compare(
    model: nn.Module,
    args: Sequence[Any],
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
    captured = capture(model, args, kwargs, loss_fn=loss_fn, targets=targets)
    task = _task(captured, planning)
    return baselines.compare(task, _device_count(task, num_devices), memory_limit)


def find_tradeoffs(
    model: nn.Module,
    args: Sequence[Any],
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
    captured = capture(model, args, kwargs, loss_fn=loss_fn, targets=targets)
    return tradeoffs.find_tradeoffs(_task(captured, planning), device_counts, objective)


def parallelize(
    model: nn.Module,
    plan: Plan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Sequence[Any] = (),
    device: torch.device | None = None,
    weights: WeightSource | None = None,
) -> ParallelModule:
    """The module that runs ``plan`` on this rank. Collective.

    The example inputs are needed only for a plan that was loaded from a file or
    made by another process. The values of a model on the meta device come from
    ``weights``, by default from its modules' ``reset_parameters``; no process then
    holds more than its parts of the parameters and one module.

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks; or if something on the meta
            device gets no value.
    """
    if not dist.is_initialized():
        raise TensorOptError(
            "parallelize needs a process group; call tensoropt_torch.init() first, under torchrun "
            "for more than one process"
        )

    def captured_model() -> CapturedModel:
        if plan.captured is not None:
            return plan.captured
        if not args and not kwargs:
            raise TensorOptError(
                "the plan was loaded without its model; give example inputs of the global batch: "
                "parallelize(model, plan, args)"
            )
        return capture(model, args, kwargs, loss_fn=loss_fn, targets=targets)

    captured = on_all_ranks(captured_model)
    return emit.parallelize(model, captured, plan, device or _device_of_group(), weights=weights)


def simulate_memory(
    model: nn.Module,
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
    captured = plan.captured
    if captured is None:
        captured = capture(model, args, kwargs, loss_fn=loss_fn, targets=targets)
    if captured.fingerprint != plan.fingerprint:
        raise TensorOptError(
            f"the plan was made for another model or batch (fingerprint {plan.fingerprint}); "
            f"{type(model).__name__} with these inputs has fingerprint {captured.fingerprint}; "
            "plan again for this model"
        )
    return simulate_step(plan, captured, replace(step or StepSettings(), **changes))


def auto_parallel(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    weights: WeightSource | None = None,
    **arguments: Any,
) -> ParallelModule:
    """``parallelize`` with the plan of ``find_strategy`` (same arguments)."""
    plan = find_strategy(model, args, kwargs, **arguments)
    return parallelize(model, plan, weights=weights)


def _pick(task: PlanningTask, option: str, count: int, limit: float | None) -> Plan:
    if option == "mini_time":
        point = options.mini_time(task, count, limit)
    elif option == "mini_parallelism":
        point = options.mini_parallelism(task, limit)
    else:
        raise TensorOptError(
            f"option '{option}' is not known; choose 'mini_time' or 'mini_parallelism', or call "
            "profile() for 'profiling'"
        )
    return replace(point.plan, captured=None)


def _task(captured: CapturedModel, planning: PlanningOptions) -> PlanningTask:
    cluster = planning.cluster if planning.cluster is not None else _default_cluster()
    if not isinstance(cluster, Cluster):
        cluster = load_cluster(cluster)
    return PlanningTask(
        captured,
        cluster,
        planning.optimizer,
        planning.inputs,
        planning.space,
        planning.max_configs,
        search=planning.search,
    )


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


def _device_count(task: PlanningTask, num_devices: int | None) -> int:
    if num_devices is not None:
        return num_devices
    return dist.get_world_size() if dist.is_initialized() else task.cluster.num_devices


def _device_of_group() -> torch.device:
    if "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _measured(task: PlanningTask, count: int) -> PlanningTask:
    """The task with costs measured on the running process group. Collective."""
    sizes = [size for size, _ in task.settings(count).mesh_axes]
    device = _device_of_group()
    groups = AxisGroups(sizes, device.type)
    axis_sets = list(range(1, 2 ** len(sizes)))
    groups.create(axis_sets)
    measured = replace(
        task,
        cluster=measure_cluster(task.cluster, device),
        measured=measure_curves(groups, axis_sets),
        measured_on=count,
    )
    groups.close()
    return measured
