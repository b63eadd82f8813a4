"""Frontiers by simulated peaks instead of the sums that the search needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner.advice import Fit, advice
from tensoropt_torch.planner.candidates import Candidate, find_frontier, fitting_counts
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.planner.memory_limits import limit_advice
from tensoropt_torch.planner.points import thinned_indices
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.simulate.step_settings import DEFAULT_STEP, StepSettings
from tensoropt_torch.units import format_bytes

log = get_logger(__name__)

SAMPLES = 8  # points that are looked at before it is said that none fits
FEW_SAMPLES = 2  # where more devices may do
MAX_GUESSES = 4
# A pick may take so much longer than the fastest that fits, as far as peaks are on a line between
# those that are known: fewer are simulated.
CLOSE = 0.01
# Where they are not, it may take so many times that much longer.
SURELY = 5
# Between a peak and its sum: within this share of the sum others differ by as much, else in
# proportion.
SMALL_EXCESS = 0.25
# Of plans that halo exchanges make unequal so many ranks are simulated.
MOST_RANKS = 8
# What a sum counts is alive at the end of forward or in the update, so that a peak is not below
# half of it: where sums are above so many limits, no peak fits.
HOPELESS = 2
# Where the least sum is above the limit, its peak by so much too, no other peak is looked at: few
# are below those of lesser sums, and by less.
FAR = 1.25
# In a job plans are simulated if their sums are above this share of the limit: a peak is not
# three times what is kept, and jobs shall start soon.
SURE_SHARE = 1 / 3


class NotSimulatedError(TensorOptError):
    """A step of this model cannot be simulated."""


@dataclass(frozen=True)
class SimulatedPoint:
    """A frontier point with both of its figures: the sum of the search
    (``memory_bytes``) and the simulated peak (``peak_bytes``), per device."""

    point: FrontierPoint
    peak_bytes: int
    in_stages: StagedPlan | None = None  # if it is, with the peak of each stage
    # Of all points that were simulated on the way to this one, by their numbers.
    known: Mapping[int, int] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return f"SimulatedPoint(peak {format_bytes(self.peak_bytes)}; {self.point!r})"

    @property
    def memory_bytes(self) -> float:
        return self.point.memory_bytes

    @property
    def time_s(self) -> float:
        return self.point.time_s

    @property
    def plan(self) -> Plan | StagedPlan:
        """The strategy of this point, ready to be executed, with its peak."""
        if self.in_stages is not None:
            return self.in_stages
        return replace(self.point.frontier.whole_plan(self.point.index), peak_bytes=self.peak_bytes)


class PeakTooLargeError(TensorOptError):
    """No simulated peak is small enough; the least that was found is."""

    def __init__(self, frontier: Frontier, limit: float, least_bytes: int, advised: str) -> None:
        super().__init__(
            f"no point of the frontier on {frontier.num_devices} devices has a simulated peak of "
            f"at most {format_bytes(limit)} per device: the least is {format_bytes(least_bytes)}; "
            + (advised or limit_advice(least_bytes, frontier.device_bytes) + "use more devices")
        )
        self.frontier = frontier
        self.limit = limit
        self.least_bytes = least_bytes


def simulate_frontier(
    frontier: Frontier, step: StepSettings = DEFAULT_STEP, max_points: int = 32
) -> list[SimulatedPoint]:
    """At most ``max_points`` points of a frontier, evenly spaced, simulated, without
    those that another one beats in both peak and time; by ascending peak."""
    points = frontier.thinned(max_points)
    simulated: list[SimulatedPoint] = []
    with progress("simulating peaks of the frontier", len(points), ticking=True) as done:
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
    frontier: Frontier,
    peak_bytes: float,
    step: StepSettings = DEFAULT_STEP,
    *,
    close: float = 0.0,
    samples: int = SAMPLES,
) -> SimulatedPoint:
    """The fastest point whose simulated peak is at most ``peak_bytes``.

    Peaks nearly always grow along the frontier as its sums do. So it is bisected from
    the last point whose sum fits, by lines through points that are known, and only some more
    points than the logarithm of their number are simulated; fewer, if it may take the share
    ``close`` longer than what fits by these lines, and ``SURELY`` times that than what may fit at
    all. Where peaks do not grow, the point fits all the same, but a faster one may fit too.

    Raises:
        TensorOptError: none of the points that were simulated fits, among them
            ``samples`` that are evenly spaced, or that with the least sum where all sums
            are far above; says the least peak.
    """
    search = _Bisection(frontier, peak_bytes, step, close, samples)
    with progress("simulating peaks of the frontier", ticking=True) as simulated:
        while (index := search.next_index()) is not None:
            search.probe(index)
            simulated()
    if search.fitting is None:
        raise PeakTooLargeError(frontier, peak_bytes, search.least_bytes, "")
    return replace(search.fitting, known=search.peaks)


class _Bisection:
    """What is known of the peaks of a frontier."""

    def __init__(
        self, frontier: Frontier, limit: float, step: StepSettings, close: float, samples: int
    ) -> None:
        self._frontier = frontier
        self._close = close
        self._samples = samples
        self._limit = limit
        self._step = step
        self.peaks: dict[int, int] = {}  # that were simulated
        self.fitting: SimulatedPoint | None = None  # the fastest that is known to fit

    @property
    def least_bytes(self) -> int:
        """The least peak so far."""
        return min(self.peaks.values())

    def probe(self, index: int) -> None:
        """Simulates a point."""
        point = _simulated(self._frontier[index], self._step)
        self.peaks[index] = point.peak_bytes
        if point.peak_bytes <= self._limit:
            self.fitting = point

    def next_index(self) -> int | None:
        """The point to simulate next: guesses, and every third time the middle of what
        is left, since guesses may be wrong. None if nothing is left to find out."""
        last = len(self._frontier) - 1
        if self._frontier[0].memory_bytes > HOPELESS * self._limit:
            return None if self.peaks else 0
        if not self.peaks:
            return self._guess(0, last)
        if self._is_far_above():
            return None
        if self.fitting is None:
            guesses = [self._guess(0, last)] if len(self.peaks) < MAX_GUESSES else []
            indices = [*guesses, *thinned_indices(len(self._frontier), self._samples)]
            return next((index for index in indices if index not in self.peaks), None)
        known = self.fitting.point.index
        first = known + 1
        larger = (index for index in self.peaks if index > known)
        last = min(larger, default=len(self._frontier)) - 1
        if first > last:
            return None
        guess = self._guess(first, last)
        if self._is_close_to(last, self._close) or self._is_close_between(guess, last):
            return None
        return (first + last) // 2 if len(self.peaks) % 3 == 0 else guess

    def _is_close_between(self, guess: int, last: int) -> bool:
        """Whether what fits is close to a guess between it and a point that does not fit, and not
        far from the last point that may fit."""
        if len(self._nearest()) < 2:
            return False
        surely = self._is_close_to(last, SURELY * self._close)
        return surely and self._is_close_to(guess, self._close)

    def _is_close_to(self, index: int, share: float) -> bool:
        """Whether what fits takes at most by that share longer than a point."""
        assert self.fitting is not None
        return self.fitting.time_s <= (1 + share) * self._frontier[index].time_s

    def _is_far_above(self) -> bool:
        least = self.peaks.get(0, 0) > FAR * self._limit
        return least and self._frontier[0].memory_bytes > self._limit

    def _guess(self, first: int, last: int) -> int:
        """The last point that fits if peaks grow with sums as between the two points that are
        nearest to the limit."""
        peak_of = self._line(*self._nearest())
        peaks = [peak_of(point.memory_bytes) for point in self._frontier]
        return min(max(bisect_right(peaks, self._limit) - 1, first), last)

    def _nearest(self) -> list[int]:
        """Up to two points that are simulated: the last that fits and the first after it that
        does not, or those with the least sums where none fits."""
        known = sorted(self.peaks)
        fitting = 0 if self.fitting is None else known.index(self.fitting.point.index)
        return known[fitting : fitting + 2]

    def _line(self, *known: int) -> Callable[[float], float]:
        """Peaks by sums: through two points if they rise, else above or below sums as at one;
        sums themselves if none is known."""
        points = [(self._frontier[index].memory_bytes, self.peaks[index]) for index in known]
        if not points:
            return lambda memory_bytes: memory_bytes
        (memory, peak), (other, higher) = points[0], points[-1]
        if higher <= peak or other <= memory:
            if abs(peak - memory) <= SMALL_EXCESS * memory:
                return lambda memory_bytes: memory_bytes + peak - memory
            return lambda memory_bytes: memory_bytes * peak / memory
        slope = (higher - peak) / (other - memory)
        return lambda memory_bytes: peak + slope * (memory_bytes - memory)


def mini_time(
    task: PlanningTask,
    num_devices: int,
    memory_limit: float | None = None,
    *,
    sure_share: float = 0.0,
) -> FrontierPoint | SimulatedPoint:
    """The fastest strategy on ``num_devices`` devices whose simulated peak is within
    the memory limit (bytes per device; by default what the task allows), but for what is
    ``CLOSE`` to it in time. Sums of at most ``sure_share`` of the limit need no simulation.

    Raises:
        TensorOptError: nothing fits; says the least peak, and what would fit.
    """
    limit = task.memory_limit_of(memory_limit)
    frontier = find_frontier(task, num_devices, [limit])
    if frontier.fastest.memory_bytes <= sure_share * limit:
        return frontier.fastest
    try:
        return pick_within(task, frontier, limit)
    except PeakTooLargeError as error:
        advised = advice(task, num_devices, limit, error.least_bytes, fit_by_peaks)
        raise PeakTooLargeError(frontier, limit, error.least_bytes, advised) from None


def pick_within(
    task: PlanningTask, frontier: Frontier, limit: float, samples: int = SAMPLES
) -> SimulatedPoint:
    """What ``mini_time`` picks of a frontier of the task.

    Raises:
        TensorOptError: as ``fastest_within``.
    """
    return fastest_within(frontier, limit, step_of(task), close=CLOSE, samples=samples)


def fit_by_peaks(task: PlanningTask, num_devices: int, limit: float) -> Fit | None:
    """The fastest strategy whose peak is within the limit, as far as few are looked at."""
    candidate = Candidate(task, num_devices)
    if candidate.least_memory_bytes > limit:
        return None
    try:
        point = fastest_within(
            candidate.frontier(pick_limits=[limit]), limit, step_of(task), close=0.1, samples=1
        )
    except PeakTooLargeError:
        return None
    return Fit(point.time_s, point.peak_bytes)


def mini_parallelism(task: PlanningTask, memory_limit: float | None = None) -> SimulatedPoint:
    """The fastest strategy on the fewest devices of the cluster whose peaks fit, as far as few
    points are looked at.

    Raises:
        TensorOptError: nothing fits on any count; says the least peak, and what would fit.
    """
    limit = task.memory_limit_of(memory_limit)
    least: list[tuple[int, int]] = []
    counts = fitting_counts(task, limit)
    for count in counts:
        candidate = Candidate(task, count)
        if candidate.least_memory_bytes > HOPELESS * limit and count != counts[-1]:
            continue
        samples = SAMPLES if count == counts[-1] else FEW_SAMPLES
        try:
            return pick_within(task, candidate.frontier(), limit, samples)
        except PeakTooLargeError as error:
            least.append((error.least_bytes, count))
    num_bytes, count = min(least)
    raise TensorOptError(
        f"no point of the frontiers on up to {task.cluster.num_devices} devices of cluster "
        f"'{task.cluster.name}' has a simulated peak of at most {format_bytes(limit)} per "
        f"device: the least on {count} is {format_bytes(num_bytes)}; "
        + advice(task, task.cluster.num_devices, limit, num_bytes, fit_by_peaks)
    )


def profile(
    task: PlanningTask, counts: Sequence[int], memory_limit: float | None = None
) -> list[ProfileRow]:
    """The option ``profiling`` by simulated peaks: the least step time for each device count."""
    limit = task.memory_limit_of(memory_limit)
    return [_profile_row(task, count, limit) for count in counts]


def _profile_row(task: PlanningTask, count: int, limit: float) -> ProfileRow:
    candidate = Candidate(task, count)
    least = candidate.least_memory_bytes
    if least > HOPELESS * limit:
        return ProfileRow(count, None, None, least, limit)
    return row_of(candidate.frontier(pick_limits=[limit]), limit, step_of(task))


def row_of(frontier: Frontier, limit: float, step: StepSettings) -> ProfileRow:
    """What a frontier has within a limit of simulated peaks."""
    count, least = frontier.num_devices, frontier.least_memory_bytes
    try:
        point = fastest_within(frontier, limit, step, close=CLOSE)
    except PeakTooLargeError as error:
        return ProfileRow(count, None, None, max(least, error.least_bytes), limit)
    return ProfileRow(count, point.time_s, point.memory_bytes, least, limit, point.peak_bytes)


def within(
    task: PlanningTask, plans: Sequence[Plan], peak_bytes: float, *, sure_share: float = 0.0
) -> list[Plan]:
    """Those whose simulated peaks are at most ``peak_bytes``, with these, and those whose sums
    are at most ``sure_share`` of it, without."""
    step = step_of(task)
    found = []
    for plan in plans:
        if plan.memory_bytes <= sure_share * peak_bytes:
            found.append(plan)
            continue
        peak = peak_of(plan, task.captured, step)
        if peak <= peak_bytes:
            found.append(replace(plan, peak_bytes=peak))
    return found


def peak_of(plan: Plan, captured: CapturedModel, step: StepSettings) -> int:
    """The simulated peak of the rank that needs most. No rank has more of any dim than rank 0,
    but for the borders that neighbours exchange where spatial dims are split.

    Raises:
        NotSimulatedError: the step cannot be simulated; says why.
    """
    from tensoropt_torch.simulate.step import simulate_step  # which jobs that surely fit never call

    ranks: tuple[int, ...] = (0,)
    if plan.settings.split_spatial:
        ranks = tuple(thinned_indices(plan.num_devices, MOST_RANKS))
    with _telling_what_is_not_simulated():
        return max(
            simulate_step(plan, captured, replace(step, rank=rank)).peak_bytes for rank in ranks
        )


def with_peaks(plan: StagedPlan, captured: CapturedModel, step: StepSettings) -> StagedPlan:
    """The plan with the simulated peaks of its stages, of their ranks 0; as of ``peak_of``.

    Raises:
        NotSimulatedError: the step of a stage cannot be simulated; says why.
    """
    from tensoropt_torch.simulate.simulated_stage import SimulatedStages
    from tensoropt_torch.simulate.step import profile_of

    with _telling_what_is_not_simulated():
        stages = SimulatedStages(plan, captured, planned=step.device)
        profiles = (profile_of(stages.stage(number), step) for number in range(plan.stages))
        return replace(plan, peaks=tuple(profile.peak_bytes for profile in profiles))


@contextmanager
def _telling_what_is_not_simulated() -> Iterator[None]:
    try:
        yield
    except TensorOptError as error:
        raise NotSimulatedError(str(error)) from error
    except Exception as error:  # of an operator that does not know tensors without memory
        raise NotSimulatedError(
            f"a step cannot be simulated: {type(error).__name__}: {error}; give memory='sums'"
        ) from error


def step_of(task: PlanningTask) -> StepSettings:
    """The step that a task plans for."""
    return StepSettings(optimizer=task.optimizer, device=task.cluster.device.type)


def _simulated(point: FrontierPoint, step: StepSettings) -> SimulatedPoint:
    plan = point.plan
    captured = plan.captured
    assert captured is not None, "points of a frontier carry their model"
    if isinstance(plan, StagedPlan):
        plan = with_peaks(plan, captured, step)
        found = SimulatedPoint(point, max(plan.peaks), plan)
    else:
        found = SimulatedPoint(point, peak_of(plan, captured, step))
    log.info("simulated %r", found)
    return found
