"""Frontiers and baselines as plain records for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.points import knee_index, thinned_indices
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

SPLIT_POINTS = 60


def curve(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    """(bytes, seconds) by memory, with the digits that matter."""
    return [[round(memory), float(f"{time_s:.7g}")] for memory, time_s in points]


def frontier_record(task: PlanningTask, devices: int, split: bool = False) -> dict[str, Any]:
    """The frontier on so many devices; if ``split``, with the network time of some
    of its points."""
    frontier = find_frontier(task, devices)
    points = [(p.memory_bytes, p.time_s) for p in frontier]
    guarantee = frontier.guarantee
    record: dict[str, Any] = {
        "epsilon": guarantee.epsilon if guarantee.exact else None,
        "complete": guarantee.complete,
        "points": curve(points),
        "turning_point": knee_index(points),
    }
    if split:
        record["split"] = _split(task, devices, frontier)
    return record


def _split(task: PlanningTask, devices: int, frontier: Frontier) -> list[dict[str, float]]:
    space = make_space(task.captured, task.settings(devices))
    chosen = {*thinned_indices(len(frontier), SPLIT_POINTS), frontier.knee.index}
    rows = []
    for index in sorted(chosen):
        plan = frontier.plan(index)
        network_s = space.network_time(plan.choices.strategy(space))
        rows.append(
            {
                "memory_bytes": plan.memory_bytes,
                "network_s": network_s,
                "compute_s": plan.time_s - network_s,
            }
        )
    return rows


def baseline_records(task: PlanningTask, devices: int) -> dict[str, list[list[float]]]:
    """The points of every baseline, by its name; none where it cannot run."""
    return {b.name: curve(b.points) for b in find_baselines(task, devices)}


def fastest_within(points: Sequence[Sequence[float]], limit: float) -> list[float] | None:
    """The fastest of the points that need at most so many bytes."""
    fitting = [list(point) for point in points if point[0] <= limit]
    return min(fitting, key=lambda point: point[1], default=None)
