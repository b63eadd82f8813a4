"""The three options that pick from frontiers: ``mini_time``,
``mini_parallelism`` and ``profiling`` (section 3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.planner.advice import Fit, advice
from tensoropt_torch.planner.candidates import Candidate, find_frontier, fitting_counts
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.units import format_bytes


def mini_time(
    task: PlanningTask, num_devices: int, memory_limit: float | None = None
) -> FrontierPoint:
    """The fastest strategy on ``num_devices`` devices within the memory limit
    (bytes per device; default: that of the task).

    Raises:
        TensorOptError: nothing fits; says the least memory, and what would fit.
    """
    limit = task.memory_limit_of(memory_limit)
    frontier = find_frontier(task, num_devices, [limit])
    if frontier.smallest.memory_bytes <= limit:
        return frontier.at(limit)
    least = frontier.least_memory_bytes
    raise TensorOptError(
        f"no strategy on {num_devices} devices needs at most {format_bytes(limit)} per device: "
        f"the least is {format_bytes(least)}; "
        + advice(task, num_devices, limit, least, fit_by_sums)
    )


def mini_parallelism(task: PlanningTask, memory_limit: float | None = None) -> FrontierPoint:
    """The fastest strategy on the fewest devices of the cluster that fit.

    Raises:
        TensorOptError: nothing fits on any count; says the least memory.
    """
    limit = task.memory_limit_of(memory_limit)
    least: list[tuple[float, int]] = []
    for count in fitting_counts(task, limit):
        candidate = Candidate(task, count)
        if candidate.least_memory_bytes <= limit:
            return candidate.frontier(pick_limits=[limit]).at(limit)
        least.append((candidate.least_memory_bytes, count))
    memory, count = min(least)
    raise TensorOptError(
        f"no number of devices of cluster '{task.cluster.name}' (up to "
        f"{task.cluster.num_devices}) fits {format_bytes(limit)} per device: the least on "
        f"{count} is {format_bytes(memory)}; "
        + advice(task, task.cluster.num_devices, limit, memory, fit_by_sums)
    )


def fit_by_sums(task: PlanningTask, num_devices: int, limit: float) -> Fit | None:
    """The fastest strategy whose sum is within the limit."""
    candidate = Candidate(task, num_devices)
    if candidate.least_memory_bytes > limit:
        return None
    point = candidate.frontier(limit).at(limit)
    return Fit(point.time_s, point.memory_bytes)


def profile(
    task: PlanningTask,
    counts: Sequence[int],
    memory_limit: float | None = None,
    progress: Callable[[ProfileRow], Any] | None = None,
) -> list[ProfileRow]:
    """The least step time for each device count, without running the job."""
    limit = task.memory_limit_of(memory_limit)
    rows = []
    for count in counts:
        candidate = Candidate(task, count)
        fits = candidate.least_memory_bytes <= limit
        point = candidate.frontier(limit).at(limit) if fits else None
        row = ProfileRow(
            count,
            point.time_s if point else None,
            point.memory_bytes if point else None,
            candidate.least_memory_bytes,
            limit,
        )
        rows.append(row)
        if progress is not None:
            progress(row)
    return rows


def row_of(frontier: Frontier, limit: float) -> ProfileRow:
    """What a frontier has within a limit of sums."""
    fits = frontier.smallest.memory_bytes <= limit
    point = frontier.at(limit) if fits else None
    return ProfileRow(
        frontier.num_devices,
        point.time_s if point else None,
        point.memory_bytes if point else None,
        frontier.least_memory_bytes,
        limit,
    )
