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
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack, get_args, overload

import torch
import torch.distributed as dist

from tensoropt_torch import advising, measure, module, simulate
from tensoropt_torch.advising import Advice, Asked, Beside, Machine, Price, work_of
from tensoropt_torch.checks import check_counts, check_memory_limit
from tensoropt_torch.config import Cluster, mesh_axes
from tensoropt_torch.emit.compilation import Compile
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import as_module
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure import ProfileOptions, Validation, ValidationOptions
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.shared import check_not_shared, note_parameters
from tensoropt_torch.module.variants import DEFAULT_MAX_VARIANTS, Shapes, VariantOptions
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner import baselines, candidates, explanation, picks, tradeoffs
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.device_counts import Objective, ProfileRow
from tensoropt_torch.planner.explanation import Explanation
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.tradeoffs import Tradeoffs
from tensoropt_torch.planner.why import WhyPlan, explain_plan
from tensoropt_torch.progress import Phases
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.job import check_group, device_of_group
from tensoropt_torch.simulate import MemoryProfile, StepSettings, simulate_step
from tensoropt_torch.staging import stages_of
from tensoropt_torch.strategy import Option, Question, find_plan
from tensoropt_torch.tasks import (
    Example,
    ExampleKeywords,
    Model,
    PlanningKeywords,
    PlanningOptions,
    StepKeywords,
    agreed_task,
    by_memory,
    cluster_of,
    device_count,
    example_of,
    model_of,
    planning_of,
    step_settings_of,
    takes_keywords,
    task_of,
)
from tensoropt_torch.units import format_duration
from tensoropt_torch.values import WeightSource

log = get_logger(__name__)


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


@takes_keywords(planning=PlanningOptions)
def find_frontier(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Frontier:
    """The whole cost frontier of a model (paper, section 4).

    Not collective: runs on the calling process alone.

    Args:
        model, args, kwargs: the model with inputs of the global batch, or an ``Example``.
        num_devices: by default the processes that run, else all devices of the
            cluster.
        keywords: ``loss_fn`` and ``targets`` of an ``Example``; ``planning``, and fields of
            ``PlanningOptions``, e.g. ``cluster="h100-8"``.
    """
    example, planning = example_of(model, args, kwargs, keywords), planning_of(keywords)
    task = task_of(example, planning, [num_devices])
    return candidates.find_frontier(task, device_count(task, num_devices))


@takes_keywords(collective=True, planning=PlanningOptions)
def find_strategy(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    option: Option = "mini_time",
    memory_limit: float | None = None,
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Plan:
    """The plan that an option picks.

    Collective if a process group runs: rank 0 searches, all ranks get the same
    plan, or the same error. A plan of ``mini_time`` for all its processes is the fastest of
    some that were run for a few steps (``MeasureOptions.finalists``), unless ``measure=False``.
    A job keeps what it has found for later ones that ask for the same (docs/costs.md, Plans
    that are kept), unless ``measuring=MeasureOptions(fresh=True)``.

    Args:
        option: ``mini_time``, the fastest on ``num_devices``; or
            ``mini_parallelism``, the fastest on the fewest devices that fit.
        memory_limit: bytes per device; by default 90 % of the device, and all of it on
            CPUs with ``memory="simulated"``. What is picked is simulated, and its peak is within
            the limit (``PlanningOptions.memory``).
        others: as for ``find_frontier``.

    Raises:
        TensorOptError: on every rank; nothing fits the limit (says the least memory, and what
            would fit: with recomputation, in micro-batches, on more devices), the batch does
            not divide, the model cannot be captured or differs between ranks.
    """

    def asked() -> tuple[Example, PlanningOptions]:
        check_choice("option", option, get_args(Option))
        check_memory_limit(memory_limit)
        return example_of(model, args, kwargs, keywords), planning_of(keywords)

    example, planning = on_all_ranks(asked)
    if planning.validate:
        check_group("find_strategy(validate=...)")
    return find_plan(Question(example, planning, option, memory_limit, num_devices))


@takes_keywords(planning=PlanningOptions)
def profile(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device_counts: Sequence[int],
    memory_limit: float | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> list[ProfileRow]:
    """The option ``profiling``: for each device count the least step time within
    the memory limit, or the least memory that would do. Arguments as for
    ``find_strategy``. Not collective."""
    planning = planning_of(keywords)
    check_memory_limit(memory_limit)
    check_counts(device_counts)
    task = task_of(example_of(model, args, kwargs, keywords), planning, device_counts)
    return by_memory(
        planning.memory,
        lambda: simulate.profile(task, device_counts, memory_limit),
        lambda: picks.profile(task, device_counts, memory_limit),
    )


@takes_keywords(planning=PlanningOptions)
def compare(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory_limit: float | None = None,
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Comparison:
    """The whole frontier next to what data parallelism, ZeRO-3, Megatron,
    Mesh-TensorFlow, OptCNN and ToFu can do on the same costs
    (docs/search.md, Baselines). Arguments as for ``find_strategy``. Not collective."""
    planning = planning_of(keywords)
    check_memory_limit(memory_limit)
    task = task_of(example_of(model, args, kwargs, keywords), planning, [num_devices])
    found = baselines.compare(task, device_count(task, num_devices), memory_limit)
    return by_memory(planning.memory, lambda: simulate.picked_by_peaks(task, found), lambda: found)


@overload
def explain(model: Plan, *, search: SearchSettings = ...) -> WhyPlan: ...


@overload
def explain(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Explanation: ...


@takes_keywords(planning=PlanningOptions)
def explain(
    model: Model | Example | Plan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Explanation | WhyPlan:
    """Why: of a plan, why it is what it is, and what its constraints cost (with ``search`` if
    that is given); of a model, what there is to plan: for every operator and parameter its rule,
    how many configs are considered, what is left out and why, and what it costs where it cannot
    be split over all devices. Arguments as for ``find_frontier``. Not collective; of a model it
    searches nothing.

    Raises:
        TensorOptError: a plan is given with arguments that it has of its own, or has no model.
    """
    if isinstance(model, Plan):
        others = [*keywords, *_given(args=args, kwargs=kwargs, num_devices=num_devices)]
        _check_none_but_search(others)
        return explain_plan(model, keywords.get("search"))
    example, planning = example_of(model, args, kwargs, keywords), planning_of(keywords)
    task = task_of(example, planning, [num_devices])
    return explanation.explain(task, device_count(task, num_devices))


def _given(**values: Any) -> list[str]:
    """Names of those that are not left out."""
    return [name for name, value in values.items() if value is not None and value != ()]


def _check_none_but_search(names: Sequence[str]) -> None:
    others = [name for name in names if name != "search"]
    if others:
        raise TensorOptError(
            f"explain() of a plan got {', '.join(others)}, which the plan has of its own; leave "
            "them out (search= may be given), or give the model instead of the plan"
        )


@takes_keywords(planning=PlanningOptions)
def find_tradeoffs(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device_counts: Sequence[int],
    objective: Objective = "money",
    **keywords: Unpack[PlanningKeywords],
) -> Tradeoffs:
    """Memory, step time and a third objective over a range of device counts:
    ``money``, ``energy`` or ``device_count``. Other arguments as for ``find_frontier``.
    Not collective.

    Raises:
        TensorOptError: the cluster does not say what a device costs or draws.
    """
    check_counts(device_counts)
    example, planning = example_of(model, args, kwargs, keywords), planning_of(keywords)
    task = task_of(example, planning, device_counts)
    return tradeoffs.find_tradeoffs(task, device_counts, objective)


@takes_keywords(planning=PlanningOptions)
def advise(
    model: Model | Example | Mapping[str, Example],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    machines: Sequence[Machine],
    device_counts: Sequence[int],
    tokens: float | None = None,
    samples: float | None = None,
    steps: float | None = None,
    price: Price | None = None,
    beside: Beside = "marked",
    memory_limit: float | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Advice:
    """What training takes and costs on kinds and numbers of machines (docs/advise.md): for each
    the fastest strategy that fits, with recomputation and in micro-batches unless ``recompute``
    and ``max_micro_batches`` say otherwise. Not collective.

    Args:
        model, args, kwargs: as for ``find_frontier``; or several examples by their names, such as
            several batches of one model.
        machines: kinds such as ``h100``, of which there are any number; presets, cluster files and
            descriptions, which have as many devices as they have.
        device_counts: numbers of devices, for each of them.
        tokens, samples, steps: how much is trained, one of them. Samples are rows of the batch.
        price: of a device for an hour; by default that of the cluster.
        beside: where DDP, FSDP2 and tensor parallelism with FSDP2 are looked at as well: at the
            rows that are ``"marked"`` (cheapest, fastest, knee), at ``"all"``, or at ``"none"``.
        memory_limit: bytes per device; by default 90 % of it.

    Raises:
        TensorOptError: a machine is not known or has no such number of devices, the work is not
            given in one unit that the example has, or the model cannot be captured.
    """
    check_counts(device_counts)
    check_memory_limit(memory_limit)
    check_choice("beside", beside, get_args(Beside))
    if "max_micro_batches" not in keywords and keywords.get("planning") is None:
        keywords["max_micro_batches"] = advising.MOST_MICRO_BATCHES
    planning, work = planning_of(keywords), work_of(tokens, samples, steps)
    if isinstance(model, Mapping):
        examples = dict(model)
    else:
        example = example_of(model, args, kwargs, keywords)
        examples = {type(example.model).__name__: example}
    return advising.advise(
        Asked(examples, machines, device_counts, work, planning, memory_limit, price, beside)
    )


@takes_keywords(collective=True)
def parallelize(
    model: Model | Example,
    plan: Plan | StagedPlan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: torch.device | None = None,
    weights: WeightSource | None = None,
    shapes: Shapes = "any",
    max_variants: int = DEFAULT_MAX_VARIANTS,
    one_process_random: bool = False,
    compile: Compile = False,
    check_capture: bool = True,
    **keywords: Unpack[ExampleKeywords],
) -> ParallelModule:
    """The module that runs ``plan`` on this rank. Collective.

    Example inputs (``args``, ``kwargs``, ``targets``) are needed only for a plan that was
    loaded from a file or made by another process. The values of a model on the meta device
    come from ``weights``, by default from its modules' ``reset_parameters``; no process then
    holds more than its parts of the parameters and one module.

    Calls of other shapes, in other modes or under other casts than the example's run
    variants, made at the first of them, at most ``max_variants`` in all. With
    ``shapes="fixed"`` other shapes are an error.

    With ``one_process_random`` dropout and other random operators draw the very
    numbers that the model draws on one process after the same ``torch.manual_seed``;
    all ranks have to call that alike. Every rank draws for whole tensors, so this is for
    tests (docs/runtime.md, Random operators).

    With ``compile`` what a rank computes between collectives is compiled by ``torch.compile``,
    at the first call of each kind: True for Inductor, or the name of another backend. Memory is
    then not what the plan says (docs/runtime.md, Compiled graphs).

    At the first training call rank 0 compares loss, gradients and buffers of the captured
    graph with those of ``model`` itself, on a few rows of the batch, unless an earlier job has
    done that for the same graph and code; until then it keeps ``model``. What capture has lost
    is an error of that call. ``check_capture=False`` leaves that out (docs/runtime.md, The
    captured graph is compared with the module).

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks; if something on the meta
            device gets no value; or if ``compile`` names no backend, or is asked for together
            with ``one_process_random``.
    """
    check_group("parallelize")
    example = on_all_ranks(lambda: example_of(model, args, kwargs, keywords))
    if isinstance(plan, StagedPlan):
        refused = {"compile": compile, "one_process_random": one_process_random}
        return stages_of(example, plan, device, weights, refused, check_capture)
    captured = on_all_ranks(lambda: model_of(plan, example))
    options = on_all_ranks(lambda: VariantOptions(find_pinned, shapes, max_variants, check_capture))
    module_of_model = as_module(example.model)
    on_all_ranks(lambda: check_not_shared(module_of_model))
    phases = Phases()
    parallel = module.parallelize(
        example.model,
        captured,
        plan,
        device or device_of_group(),
        weights=weights,
        options=options,
        one_process_random=one_process_random,
        compile=compile,
        compared=measure.KeptComparison(module_of_model, captured),
    )
    note_parameters(module_of_model, parallel)
    phases.end("emission")
    log.info("made in %s: %r", format_duration(phases.total_s), parallel)
    return parallel


@takes_keywords(step=StepSettings)
def simulate_memory(
    model: Model | Example,
    plan: Plan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **keywords: Unpack[StepKeywords],
) -> MemoryProfile:
    """The peak memory of one rank in a training step under ``plan``, and what it is
    made of (docs/costs.md, Simulated memory). Not collective; no tensor is real.

    Args:
        model, args, kwargs: as for ``parallelize``.
        keywords: ``loss_fn`` and ``targets`` of an ``Example``; ``step``, and fields of
            ``StepSettings``, e.g. ``optimizer="sgd"``.

    Raises:
        TensorOptError: the plan was made for another model or batch, or has no
            such rank.
    """
    captured = model_of(plan, example_of(model, args, kwargs, keywords))
    plan.check_model(captured)
    return simulate_step(plan, captured, step_settings_of(keywords))


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
        progress: called with steps done, steps in all, and what it is at; in place of the
            bar on a terminal.

    Raises:
        TensorOptError: on every rank; the file is damaged or cannot be written.
    """
    check_group("profile_hardware")
    described = on_all_ranks(lambda: cluster_of(cluster))
    axes = on_all_ranks(lambda: tuple(mesh_axes(described, dist.get_world_size())))
    return measure.profile_hardware(described, axes, device_of_group(), options, progress)


@takes_keywords(collective=True, planning=PlanningOptions)
def validate(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    options: ValidationOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Validation:
    """Runs random strategies of a model for a few steps each and compares predicted
    with measured step time, network time and peak memory. Collective.

    Args:
        options: how many strategies, steps and passes, the seed, the optimizer, for how
            long, and whether to run again what an earlier job has run.
        progress: called with runs of strategies done and in all; in place of the bar on a
            terminal.
        others: as for ``find_strategy``; ``args`` are real tensors.

    Raises:
        TensorOptError: on every rank; inputs are on the meta device.
    """
    check_group("validate")

    def asked() -> tuple[Example, PlanningOptions]:
        return example_of(model, args, kwargs, keywords), planning_of(keywords)

    example, planning = on_all_ranks(asked)
    task = agreed_task(example, planning, dist.get_world_size())
    tell = None if progress is None else lambda done, total, _: progress(done, total)
    return measure.validate(
        as_module(example.model), task, example.batch, device_of_group(), options, tell
    )


@takes_keywords(collective=True, planning=PlanningOptions)
def auto_parallel(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    option: Option = "mini_time",
    memory_limit: float | None = None,
    num_devices: int | None = None,
    weights: WeightSource | None = None,
    shapes: Shapes = "any",
    max_variants: int = DEFAULT_MAX_VARIANTS,
    one_process_random: bool = False,
    compile: Compile = False,
    check_capture: bool = True,
    **keywords: Unpack[PlanningKeywords],
) -> ParallelModule:
    """``parallelize`` with the plan of ``find_strategy`` (same arguments)."""
    given = model.model if isinstance(model, Example) else model
    if isinstance(given, torch.nn.Module):
        on_all_ranks(lambda: check_not_shared(given))  # before planning takes its time
    plan = find_strategy(
        model,
        args,
        kwargs,
        option=option,
        memory_limit=memory_limit,
        num_devices=num_devices,
        **keywords,
    )
    return parallelize(
        given,
        plan,
        weights=weights,
        shapes=shapes,
        max_variants=max_variants,
        one_process_random=one_process_random,
        compile=compile,
        check_capture=check_capture,
    )
