"""Comparing and explaining what planning finds: functions that need no GPU, no process group and
no real parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, overload

from tensoropt_torch import simulate, staging
from tensoropt_torch.checks import check_counts, check_memory_limit
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner import baselines, explanation, tradeoffs
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.device_counts import Objective
from tensoropt_torch.planner.explanation import Explanation
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.tradeoffs import Tradeoffs
from tensoropt_torch.planner.why import WhyPlan, explain_plan
from tensoropt_torch.planner.why_stages import WhyStages, explain_stages
from tensoropt_torch.staging import with_stage_search
from tensoropt_torch.tasks import (
    RUNS_NOTHING,
    SEARCHES_NOTHING,
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
    (docs/search.md, Baselines); with ``max_stages`` also next to stages as they are set by hand
    (``staging/grids.py``). Arguments as for ``find_strategy``. Not collective."""
    planning = planning_of(keywords)
    check_unused("compare", planning, RUNS_NOTHING)
    check_memory_limit(memory_limit)
    task = task_of(example_of(model, args, kwargs, keywords), planning, [num_devices])
    task = with_stage_search(task)
    found = baselines.compare(task, device_count(task, num_devices), memory_limit)
    if task.max_stages > 1:
        found = staging.with_grids(task, found)
    return by_memory(planning.memory, lambda: simulate.picked_by_peaks(task, found), lambda: found)


@overload
def explain(model: Plan, *, search: SearchSettings = ...) -> WhyPlan: ...


@overload
def explain(model: StagedPlan, *, search: SearchSettings = ...) -> WhyStages: ...


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
    model: Model | Example | Plan | StagedPlan,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    num_devices: int | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> Explanation | WhyPlan | WhyStages:
    """Why: of a plan, why it is what it is, and what its constraints cost (with ``search`` if
    that is given), of stages each by itself; of a model, what there is to plan: for every operator
    and parameter its rule, how many configs are considered, what is left out and why, and what it
    costs where it cannot be split over all devices. Arguments as for ``find_frontier``. Not
    collective; of a model it searches nothing.

    Raises:
        TensorOptError: a plan is given with arguments that it has of its own, or has no model; an
            option says nothing of what there is to plan.
    """
    if isinstance(model, Plan | StagedPlan):
        others = [*keywords, *_given(args=args, kwargs=kwargs, num_devices=num_devices)]
        _check_none_but_search(others)
        search = keywords.get("search")
        if isinstance(model, StagedPlan):
            return explain_stages(model, search)
        return explain_plan(model, search)
    example, planning = example_of(model, args, kwargs, keywords), planning_of(keywords)
    check_unused("explain", planning, RUNS_NOTHING, SEARCHES_NOTHING)
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
    check_unused("find_tradeoffs", planning, RUNS_NOTHING)
    task = with_stage_search(task_of(example, planning, device_counts))
    return tradeoffs.find_tradeoffs(task, device_counts, objective)
