"""Frontiers by simulated peaks instead of the sums that the search needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import Candidate, plannable_counts
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.planner.points import thinned_indices
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.simulate.step import DEFAULT_STEP, StepSettings, simulate_step
from tensoropt_torch.units import format_bytes

log = get_logger(__name__)

SAMPLES = 8  # points that are looked at before it is said that none fits
MAX_GUESSES = 4


@dataclass(frozen=True)
class SimulatedPoint:
    """A frontier point with both of its figures: the sum of the search
    (``memory_bytes``) and the simulated peak (``peak_bytes``), per device."""

    point: FrontierPoint
    peak_bytes: int

    def __repr__(self) -> str:
        return f"SimulatedPoint(peak {format_bytes(self.peak_bytes)}; {self.point!r})"

    @property
    def memory_bytes(self) -> float:
        return self.point.memory_bytes

    @property
    def time_s(self) -> float:
        return self.point.time_s

    @property
    def plan(self) -> Plan:
        """The strategy of this point, ready to be executed, with its peak."""
        return replace(self.point.plan, peak_bytes=self.peak_bytes)


class PeakTooLargeError(TensorOptError):
    """No simulated peak is small enough; the least that was found is."""

    def __init__(self, num_devices: int, limit: float, least_bytes: int) -> None:
        super().__init__(
            f"no point of the frontier on {num_devices} devices has a simulated peak of at most "
            f"{format_bytes(limit)} per device: the least is {format_bytes(least_bytes)}; raise "
            "memory_limit to that, or use more devices"
        )
        self.least_bytes = least_bytes


def simulate_frontier(
    frontier: Frontier, step: StepSettings = DEFAULT_STEP, max_points: int = 32
) -> list[SimulatedPoint]:
    """At most ``max_points`` points of a frontier, evenly spaced, simulated, without
    those that another one beats in both peak and time; by ascending peak."""
    points = frontier.thinned(max_points)
    simulated: list[SimulatedPoint] = []
    with progress("simulating peaks of the frontier", len(points)) as done:
        for frontier_point in points:
            simulated.append(_simulated(frontier_point, step))
            done()
    simulated.sort(key=lambda point: (point.peak_bytes, point.time_s))
    kept: list[SimulatedPoint] = []
    for point in simulated:
        if not kept or point.time_s < kept[-1].time_s:
            kept.append(point)
    return kept


def fastest_within(
    frontier: Frontier, peak_bytes: float, step: StepSettings = DEFAULT_STEP
) -> SimulatedPoint:
    """The fastest point whose simulated peak is at most ``peak_bytes``.

    Peaks nearly always grow along the frontier as its sums do. So it is bisected from
    the fast end, and only some more points than the logarithm of their number are
    simulated. Where peaks do not grow, the point fits all the same, but a faster one
    may fit too.

    Raises:
        TensorOptError: none of the points that were simulated fits, among them
            ``SAMPLES`` that are evenly spaced; says the least peak.
    """
    search = _Bisection(frontier, peak_bytes, step)
    with progress("simulating peaks of the frontier") as simulated:
        while (index := search.next_index()) is not None:
            search.probe(index)
            simulated()
    if search.fitting is None:
        raise PeakTooLargeError(frontier.num_devices, peak_bytes, search.least_bytes)
    return search.fitting


class _Bisection:
    """What is known of the peaks of a frontier."""

    def __init__(self, frontier: Frontier, limit: float, step: StepSettings) -> None:
        self._frontier = frontier
        self._limit = limit
        self._step = step
        self._peaks: dict[int, int] = {}
        self._ratio = 1.0  # of peak and sum, at the last point
        self.fitting: SimulatedPoint | None = None  # the fastest that is known to fit

    @property
    def least_bytes(self) -> int:
        """The least peak so far."""
        return min(self._peaks.values())

    def probe(self, index: int) -> None:
        """Simulates a point."""
        point = _simulated(self._frontier[index], self._step)
        self._peaks[index] = point.peak_bytes
        self._ratio = point.peak_bytes / point.memory_bytes
        if point.peak_bytes <= self._limit:
            self.fitting = point

    def next_index(self) -> int | None:
        """The point to simulate next: guesses, and every third time the middle of what
        is left, since guesses may be wrong. None if nothing is left to find out."""
        last = len(self._frontier) - 1
        if not self._peaks:
            return last
        if self.fitting is None:
            guesses = [self._guess(0, last)] if len(self._peaks) < MAX_GUESSES else []
            indices = [*guesses, *thinned_indices(len(self._frontier), SAMPLES)]
            return next((index for index in indices if index not in self._peaks), None)
        known = self.fitting.point.index
        first = known + 1
        last = min((index for index in self._peaks if index > known), default=first) - 1
        if first > last:
            return None
        return (first + last) // 2 if len(self._peaks) % 3 == 0 else self._guess(first, last)

    def _guess(self, first: int, last: int) -> int:
        """The last point that fits if its peak is to its sum as at the point before."""
        sums = [point.memory_bytes * self._ratio for point in self._frontier]
        return min(max(bisect_right(sums, self._limit) - 1, first), last)


def mini_time(
    task: PlanningTask, num_devices: int, memory_limit: float | None = None
) -> SimulatedPoint:
    """The fastest strategy on ``num_devices`` devices whose simulated peak is within
    the memory limit (bytes per device; by default what the task allows).

    Raises:
        TensorOptError: nothing fits; says the least peak.
    """
    limit = task.default_memory_limit if memory_limit is None else memory_limit
    return fastest_within(Candidate(task, num_devices).frontier(), limit, step_of(task))


def mini_parallelism(task: PlanningTask, memory_limit: float | None = None) -> SimulatedPoint:
    """The fastest strategy on the fewest devices of the cluster whose peaks fit.

    Raises:
        TensorOptError: nothing fits on any count; says the least peak.
    """
    limit = task.default_memory_limit if memory_limit is None else memory_limit
    least: list[tuple[int, int]] = []
    counts = plannable_counts(task)
    for count in counts:
        candidate = Candidate(task, count)
        # What a sum counts is alive at the end of forward or in the update, so that a
        # peak is not below half of it.
        if candidate.least_memory_bytes > 2 * limit and count != counts[-1]:
            continue
        try:
            return fastest_within(candidate.frontier(), limit, step_of(task))
        except PeakTooLargeError as error:
            least.append((error.least_bytes, count))
    num_bytes, count = min(least)
    raise TensorOptError(
        f"no point of the frontiers on up to {task.cluster.num_devices} devices of cluster "
        f"'{task.cluster.name}' has a simulated peak of at most {format_bytes(limit)} per "
        f"device: the least is {format_bytes(num_bytes)} on {count}; raise memory_limit to that, "
        "or use a smaller batch"
    )


def within(task: PlanningTask, plans: Sequence[Plan], peak_bytes: float) -> list[Plan]:
    """Those whose simulated peaks are at most ``peak_bytes``, with these."""
    step = step_of(task)
    peaks = [(simulate_step(plan, task.captured, step).peak_bytes, plan) for plan in plans]
    return [replace(plan, peak_bytes=peak) for peak, plan in peaks if peak <= peak_bytes]


def step_of(task: PlanningTask) -> StepSettings:
    """The step that a task plans for."""
    return StepSettings(optimizer=task.optimizer, device=task.cluster.device.type)


def _simulated(point: FrontierPoint, step: StepSettings) -> SimulatedPoint:
    plan = point.plan
    assert plan.captured is not None, "points of a frontier carry their model"
    found = SimulatedPoint(point, simulate_step(plan, plan.captured, step).peak_bytes)
    log.info("simulated %r", found)
    return found
