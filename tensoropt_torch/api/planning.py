"""Finding plans: functions that need no GPU, no process group and no real parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_args

from tensoropt_torch import simulate
from tensoropt_torch.checks import check_counts, check_memory_limit
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner import candidates, picks
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.job import check_group
from tensoropt_torch.staging import with_stage_search
from tensoropt_torch.strategy import Option, StrategyRequest, find_plan
from tensoropt_torch.tasks import (
    RUNS_NOTHING,
    Example,
    Model,
    PlanningKeywords,
    PlanningOptions,
    by_memory,
    check_unused,
    device_count,
    example_of,
    planning_of,
    takes_keywords,
    task_of,
)


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
    check_unused("find_frontier", planning, RUNS_NOTHING)
    task = with_stage_search(task_of(example, planning, [num_devices]))
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
) -> Plan | StagedPlan:
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
        if option == "mini_parallelism" and num_devices is not None:
            raise TensorOptError(
                f"num_devices={num_devices} is not for option='mini_parallelism', which finds the "
                "fewest devices that fit; leave it out"
            )
        return example_of(model, args, kwargs, keywords), planning_of(keywords)

    example, planning = on_all_ranks(asked)
    if planning.validate:
        check_group("find_strategy(validate=...)")
    return find_plan(StrategyRequest(example, planning, option, memory_limit, num_devices))


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
    check_unused("profile", planning, RUNS_NOTHING)
    check_memory_limit(memory_limit)
    check_counts(device_counts)
    task = task_of(example_of(model, args, kwargs, keywords), planning, device_counts)
    task = with_stage_search(task)
    return by_memory(
        planning.memory,
        lambda: simulate.profile(task, device_counts, memory_limit),
        lambda: picks.profile(task, device_counts, memory_limit),
    )
