"""Plans that may be the fastest, for those who can run some before they take one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.frontier import FrontierPoint
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, step_time_s

KNOWN = ("data parallel", "Megatron", "ZeRO-3")
NEAR = 1.5  # predictions of plans that run are not as far off


def find_finalists(task: PlanningTask, point: FrontierPoint, memory_limit: float) -> list[Plan]:
    """The plan of a point; and, if their sums of memory are within ``memory_limit`` (bytes per
    device) and they are predicted to take not much longer, those of known strategies and of the
    turning point of its frontier. No two are alike."""
    pick = point.frontier.whole_plan(point.index)
    found = {pick.strategy_hash: pick}
    for plan in _others(task, point, memory_limit):
        if plan.memory_bytes <= memory_limit and plan.time_s <= NEAR * pick.time_s:
            plan = replace(plan, frontier=pick.frontier, guarantee=pick.guarantee)
            found.setdefault(plan.strategy_hash, plan)
    return list(found.values())


def replanned(task: PlanningTask, plan: Plan, pick: Plan) -> Plan:
    """The strategy of another plan of the model with the costs of the task, beside the frontier
    of its ``pick``."""
    captured, settings = next(
        graph
        for graph in task.graphs(plan.num_devices)
        if graph[0].micro_batches == plan.settings.micro_batches
    )
    space = make_space(captured, settings)
    strategy = plan.choices.strategy(space)
    return replace(
        plan.with_part(time_s=step_time_s(space, strategy)),
        settings=settings,
        frontier=pick.frontier,
        guarantee=pick.guarantee,
        measured_s=None,
        captured=captured,
    )


def _others(task: PlanningTask, point: FrontierPoint, memory_limit: float) -> Iterator[Plan]:
    frontier = point.frontier
    for baseline in find_baselines(task, frontier.num_devices, KNOWN, [memory_limit]):
        plan = baseline.plan_at(memory_limit)
        if isinstance(plan, Plan):  # none of these is in stages
            yield plan
    if frontier.knee.stages == 1:
        yield frontier.whole_plan(frontier.knee.index)
