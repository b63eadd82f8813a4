"""Measured times of collectives, changed as a whole."""

from __future__ import annotations

from dataclasses import replace

from tensoropt_torch.planner.options import PlanningTask


def with_slower_collectives(
    task: PlanningTask, factor: float = 1.0, added_s: float = 0.0
) -> PlanningTask:
    """The task with measured times of collectives multiplied, then made longer by so many
    seconds each."""
    curves = tuple(
        (name, axes, tuple((size, factor * seconds + added_s) for size, seconds in samples))
        for name, axes, samples in task.measured
    )
    return replace(task, measured=curves)
