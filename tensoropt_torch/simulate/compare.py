"""What systems can do next to each other, where all picks are by simulated peaks."""

from __future__ import annotations

from dataclasses import replace

from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner.baselines import Baseline, Comparison, Picked
from tensoropt_torch.planner.points import BEST, pick_index
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.simulate.refine import (
    PeakTooLargeError,
    peak_of,
    pick_within,
    step_of,
    with_peaks,
)


def picked_by_peaks(task: PlanningTask, comparison: Comparison) -> Comparison:
    """With what each system has that fits the limit by its simulated peak.

    Raises:
        NotSimulatedError: a step cannot be simulated; says why.
    """
    ours = _of_frontier(task, comparison)
    names = [one.name for one in comparison.baselines]
    picks: dict[str, Picked | None] = {comparison.ours.name: ours}
    with progress("simulating peaks of baselines", len(names), ticking=True) as done:
        for one in comparison.baselines:
            done(one.title, more=0)
            if one.name != BEST:
                picks[one.name] = _of_baseline(task, one, comparison.memory_limit)
            done()
    for one in comparison.baselines:
        if one.name == BEST:
            picks[BEST] = _best(one, [picks[name] for name in names if name != BEST])
    return replace(comparison, picks=picks, simulated=lambda plan: max(_peaks_of(task, plan)))


def _peaks_of(task: PlanningTask, plan: Plan | StagedPlan) -> tuple[int, ...]:
    """Of each stage, or of the plan."""
    if isinstance(plan, StagedPlan):
        return with_peaks(plan, task.captured, step_of(task)).peaks
    return (peak_of(plan, task.captured, step_of(task)),)


def _of_frontier(task: PlanningTask, comparison: Comparison) -> Picked | None:
    try:
        found = pick_within(task, comparison.frontier, comparison.memory_limit)
    except PeakTooLargeError:
        return None
    peaks = found.in_stages.peaks if found.in_stages else ()
    return Picked(
        found.point.index, found.memory_bytes, found.time_s, found.peak_bytes, peaks, found.known
    )


def _of_baseline(task: PlanningTask, one: Baseline, limit: float) -> Picked | None:
    """From the last point whose sum fits on to less memory, by the ratio of peak and sum."""
    index = pick_index(one.points, limit)
    while index is not None:
        memory, time_s = one.points[index]
        plan = one.plan(index)
        peaks = _peaks_of(task, plan)
        peak = max(peaks)
        if peak <= limit:
            of_stages = peaks if isinstance(plan, StagedPlan) else ()
            return Picked(index, memory, time_s, peak, of_stages)
        if index == 0:
            return None
        fits = pick_index(one.points, limit * memory / peak)
        index = 0 if fits is None else min(fits, index - 1)
    return None


def _best(one: Baseline, picks: list[Picked | None]) -> Picked | None:
    """The fastest of these that is a point of the best of all baselines, too."""
    found = [
        replace(pick, index=one.points.index((pick.memory_bytes, pick.time_s)))
        for pick in picks
        if pick is not None and (pick.memory_bytes, pick.time_s) in one.points
    ]
    return min(found, key=lambda pick: pick.time_s, default=None)
