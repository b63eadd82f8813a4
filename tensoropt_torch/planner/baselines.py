"""What other systems can do in the same space, on the same costs.

Each baseline is the space restricted to what a system considers, searched by the
same engine (``csrc/baselines/baselines.h``)::

    for baseline in find_baselines(task, num_devices=16):
        point = baseline.at(memory_limit=16e9)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensoropt_torch import _C, planner
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Guarantee, Plan, Settings, StagedPlan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.frontier_view import Peak
from tensoropt_torch.planner.points import BEST, OURS, named_points, pick_index
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

# What their users call them.
KNOWN_AS = {
    "data parallel": "DDP (data parallel)",
    "ZeRO-3": "FSDP2 (ZeRO-3)",
    "Megatron grid": "Megatron grid (data x tensor x pipeline)",
    "ZeRO-3 grid": "FSDP2 grid (ZeRO-3 x tensor x pipeline)",
}
BASELINES = ("data parallel", "ZeRO-3", "Megatron", "Mesh-TensorFlow", "OptCNN", "ToFu", BEST)

Points = tuple[tuple[float, float], ...]
MakePlan = Callable[[int], Plan | StagedPlan]  # of a point, by its number


@dataclass(frozen=True)
class Baseline:
    """The strategies of one system.

    Attributes:
        name: one of ``BASELINES``, or of a grid of stages.
        points: (memory_bytes, time_s) by ascending memory and descending time;
            empty: the system has no strategy for this model.
    """

    name: str
    points: Points
    _plan: Callable[[int], Plan | StagedPlan] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def title(self) -> str:
        """The name with that of users."""
        return KNOWN_AS.get(self.name, self.name)

    def __repr__(self) -> str:
        if not self.points:
            return f"Baseline('{self.name}': no strategy)"
        ends = (format_costs(*point) for point in (self.points[0], self.points[-1]))
        return f"Baseline('{self.name}': {len(self.points)} points from {' to '.join(ends)})"

    def plan(self, index: int) -> Plan | StagedPlan:
        """The plan of a point that ``find_baselines`` found, ready to be executed."""
        assert self._plan is not None, "these points were not found here"
        return self._plan(index)

    def at(self, memory_limit: float) -> tuple[float, float] | None:
        """The fastest point that needs at most ``memory_limit`` bytes per device."""
        index = pick_index(self.points, memory_limit)
        return None if index is None else self.points[index]

    def plan_at(self, memory_limit: float) -> Plan | StagedPlan | None:
        """The plan of that point."""
        index = pick_index(self.points, memory_limit)
        return None if index is None else self.plan(index)


@dataclass(frozen=True)
class Picked:
    """What is picked of a baseline, or of the frontier, at a memory limit: the number of the
    point, its sum and its simulated peak in bytes per device, and its step time."""

    index: int
    memory_bytes: float
    time_s: float
    peak_bytes: int
    peaks: tuple[int, ...] = ()  # of each stage, if it is in some
    known: Mapping[int, int] = field(default_factory=dict)  # peaks of points that were looked at


@dataclass(frozen=True)
class Comparison:
    """All baselines next to the whole frontier (``ours``).

    ``picks`` are by name what has a simulated peak within the limit, None for who has nothing;
    None as a whole where the limit is compared with sums. ``simulated`` gives the simulated peak of
    a plan, in bytes per device, as they were picked by.
    """

    num_devices: int
    memory_limit: float
    baselines: tuple[Baseline, ...]
    ours: Baseline
    _frontier: Frontier | None = field(default=None, compare=False, repr=False)
    picks: Mapping[str, Picked | None] | None = None
    simulated: Callable[[Plan | StagedPlan], int] | None = field(
        default=None, compare=False, repr=False
    )

    def report(
        self, path: str | Path, *, counts: Sequence[ProfileRow] = (), peak: Peak | None = None
    ) -> None:
        """Writes a page of the frontier with the baselines beside it to one HTML file; as
        ``Frontier.report``."""
        additions = planner.Additions(self.memory_limit, self.baselines, counts, peak)
        if self.picks is not None:
            ours = self.picks[self.ours.name]
            additions = replace(
                additions,
                peaks=self._named_peaks(ours.known if ours else {}),
                picked={name: one.index if one else None for name, one in self.picks.items()},
                picked_peaks={name: one.peak_bytes for name, one in self.picks.items() if one},
            )
        planner.write_frontier_page(path, self.frontier.view, additions)

    def _named_peaks(self, known: Mapping[int, int]) -> Mapping[int, int]:
        """Those that are known, with those of the ends and of the knee of the frontier."""
        if self.simulated is None:
            return known
        missing = [index for index in named_points(self.ours.points) if index not in known]
        with progress("simulating peaks of the page", len(missing), ticking=True) as done:
            found = {}
            for index in missing:
                found[index] = self.simulated(self.ours.plan(index))
                done()
        return {**known, **found}

    @property
    def frontier(self) -> Frontier:
        """The frontier of which ``ours`` are the points."""
        assert self._frontier is not None, "this comparison was not found here"
        return self._frontier

    def pick(self, row: Baseline) -> tuple[float, float] | None:
        """Memory and time of what is picked of a baseline or of ``ours`` at the limit."""
        if self.picks is None:
            return row.at(self.memory_limit)
        found = self.picks[row.name]
        return None if found is None else (found.memory_bytes, found.time_s)

    def plan(self) -> Plan | StagedPlan | None:
        """The plan that TensorOpt picks; None: nothing fits."""
        if self.picks is None:
            return self.ours.plan_at(self.memory_limit)
        found = self.picks[self.ours.name]
        if found is None:
            return None
        plan = self.ours.plan(found.index)
        if isinstance(plan, StagedPlan):
            return replace(plan, peaks=found.peaks)
        return replace(plan, peak_bytes=found.peak_bytes)

    def __repr__(self) -> str:
        times = []
        for row in (*self.baselines, self.ours):
            point = self.pick(row)
            times.append(f"{row.name} {format_seconds(point[1]) if point else 'does not fit'}")
        limit = format_bytes(self.memory_limit)
        return (
            f"Comparison({self.num_devices} devices, at most {limit} per device: "
            f"{', '.join(times)})"
        )


def compare(task: PlanningTask, num_devices: int, memory_limit: float | None = None) -> Comparison:
    """The baselines and the frontier under a limit in bytes per device (by
    default that of the task)."""
    limit = task.memory_limit_of(memory_limit)
    frontier = find_frontier(task, num_devices, [limit])
    points = tuple((point.memory_bytes, point.time_s) for point in frontier)
    return Comparison(
        num_devices,
        limit,
        tuple(find_baselines(task, num_devices, pick_limits=[limit])),
        Baseline(OURS, points, frontier.plan),
        frontier,
    )


def find_baselines(
    task: PlanningTask,
    num_devices: int,
    names: Sequence[str] = BASELINES,
    pick_limits: Sequence[float] = (),
) -> list[Baseline]:
    """The baselines of these names, in this order, to be picked from by
    ``pick_limits`` (bytes per device).

    ``"best baseline"`` is the best of all others for every memory limit.
    """
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise TensorOptError(
            f"baseline '{unknown[0]}' is not known; choose from {', '.join(BASELINES)}"
        )
    spaces = [
        _Space(captured, settings, make_space(captured, settings))
        for captured, settings in task.graphs(num_devices)
    ]
    needed = dict.fromkeys(BASELINES if BEST in names else names)
    searched = [name for name in needed if name != BEST]
    found: dict[str, Baseline] = {}
    with progress("searching baselines", len(searched), ticking=True) as done:
        for name in searched:
            done(KNOWN_AS.get(name, name), more=0)
            several = [_search(task.search, space, name, pick_limits) for space in spaces]
            found[name] = best_of(several, name)
            done()
    if BEST in names:
        found[BEST] = best_of(list(found.values()), BEST)
    return [found[name] for name in names]


@dataclass(frozen=True)
class _Space:
    """The strategy space of the model, or of a number of micro-batches."""

    captured: CapturedModel
    settings: Settings
    core: _C.SearchSpace


def _search(
    search: SearchSettings, space: _Space, name: str, pick_limits: Sequence[float]
) -> Baseline:
    core = space.core
    result = core.baseline(name, search.epsilon, search.num_threads, list(pick_limits))
    points = tuple((memory, time_s) for memory, time_s in result.points)
    epsilon = search.epsilon if result.exact else math.inf
    guarantee = Guarantee(bool(result.exact), epsilon, complete=core.complete)

    def plan(index: int) -> Plan:
        strategy = result.unroll(index)
        return Plan.of(core, space.settings, space.captured, strategy, points, guarantee)

    return Baseline(name, points, plan)


def best_of(baselines: Sequence[Baseline], name: str) -> Baseline:
    """The points that no point of another one beats, under a name of their own."""
    if len(baselines) == 1:
        return replace(baselines[0], name=name)
    candidates = sorted(
        (point, number, index)
        for number, baseline in enumerate(baselines)
        for index, point in enumerate(baseline.points)
    )
    points: list[tuple[float, float]] = []
    origins: list[tuple[int, int]] = []
    for point, number, index in candidates:
        if not points or point[1] < points[-1][1]:
            points.append(point)
            origins.append((number, index))

    def plan(index: int) -> Plan | StagedPlan:
        number, at = origins[index]
        return baselines[number].plan(at)

    return Baseline(name, tuple(points), plan)
