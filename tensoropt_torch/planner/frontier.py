"""The cost frontier: every strategy not beaten in both time and memory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload
from weakref import WeakValueDictionary

from tensoropt_torch import pages, planner
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.html_table import html_table
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.frontier_view import FrontierView, Peak
from tensoropt_torch.planner.memory_limits import (
    DEFAULT_MEMORY_FRACTION,
    default_memory_limit,
    limit_advice,
)
from tensoropt_torch.planner.points import (
    FRONTIER_COLUMNS,
    OURS,
    frontier_rows,
    knee_index,
    named_points,
    thinned_indices,
)
from tensoropt_torch.planner.searched import FrontierPart, Searched, weakest, without_stages
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

HTML_ROWS = 12

# Memory and time of a point, the space it was found in and its number there.
Place = tuple[float, float, int, int]


@dataclass(frozen=True)
class FrontierPoint:
    """One point: predicted memory per device (bytes) and step time (s)."""

    memory_bytes: float
    time_s: float
    index: int
    _frontier: Frontier = field(repr=False)

    @property
    def frontier(self) -> Frontier:
        """The frontier that it is a point of."""
        return self._frontier

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches as which a step runs the batch."""
        return self._frontier.shape(self.index)[1]

    @property
    def stages(self) -> int:
        """The number of stages of a pipeline into which the model is cut; 1: it is whole."""
        return self._frontier.shape(self.index)[0]

    @property
    def plan(self) -> Plan | StagedPlan:
        """The strategy of this point, ready to be executed."""
        return self._frontier.plan(self.index)

    def explain(self) -> planner.WhyPlan | planner.WhyStages:
        """Why its plan is what it is, and what would have to change for another one: as
        ``explain``."""
        plan = self.plan
        if isinstance(plan, StagedPlan):
            return planner.explain_stages(plan)
        return planner.explain_plan(plan)

    def __repr__(self) -> str:
        costs = format_costs(self.memory_bytes, self.time_s)
        return f"FrontierPoint({self.index} of {len(self._frontier)}: {costs})"


class Frontier(Sequence[FrontierPoint]):
    """Points by ascending memory and descending time, the best of all that was searched.

    ``guarantee`` says how far the points may be from the best ones; section 4 of
    the paper.
    """

    def __init__(
        self,
        searched: Sequence[Searched],
        seconds: float,
        memory_fraction: float = DEFAULT_MEMORY_FRACTION,
        in_stages: Sequence[FrontierPart] = (),
        task: tuple[Settings, CapturedModel] | None = None,
    ) -> None:
        """``task`` is that of strategies without stages; by default of those that were searched."""
        self._found: list[FrontierPart] = [*searched, *in_stages]
        self._memory_fraction = memory_fraction
        self.guarantee = weakest([found.guarantee for found in self._found])
        self._settings, self._captured = task or (searched[0].settings, searched[0].captured)
        self._places = list(_best(self._found))
        self._costs = tuple((memory, time) for memory, time, *_ in self._places)
        # Points know their frontier, which keeps none: it goes, with its large
        # strategy spaces, as soon as nobody has one of them.
        self._points: WeakValueDictionary[int, FrontierPoint] = WeakValueDictionary()
        self.search_seconds = seconds

    @property
    def stats(self) -> dict[str, float]:
        """Counts and seconds of the search, see ``csrc/search/frontier_tracking.h``."""
        total: Counter[str] = Counter()
        for found in self._found:
            total.update(found.stats)
        return dict(total)

    def shape(self, index: int) -> tuple[int, int]:
        """In how many stages and micro-batches a point runs."""
        _, _, found, number = self._places[index]
        return self._found[found].shape(number)

    @property
    def num_devices(self) -> int:
        return self._settings.num_devices

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def device_bytes(self) -> float:
        """The memory of a device."""
        return float(self._settings.cluster["device"]["memory_bytes"])

    @property
    def default_memory_limit(self) -> float:
        """Bytes per device that a pick may use if no limit is given."""
        return default_memory_limit(self.device_bytes, self._memory_fraction)

    @property
    def least_memory_bytes(self) -> float:
        """The least memory per device with which any strategy does."""
        return min(found.least_memory_bytes for found in self._found)

    @overload
    def __getitem__(self, index: int) -> FrontierPoint: ...
    @overload
    def __getitem__(self, index: slice) -> list[FrontierPoint]: ...
    def __getitem__(self, index: int | slice) -> FrontierPoint | list[FrontierPoint]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        point = self._points.get(index)
        if point is None:
            self._points[index] = point = FrontierPoint(*self._costs[index], index, self)
        return point

    def __len__(self) -> int:
        return len(self._costs)

    def __repr__(self) -> str:
        if not self._costs:
            return f"Frontier(no points on {self.num_devices} devices)"
        ends = (format_costs(p.memory_bytes, p.time_s) for p in (self.smallest, self.fastest))
        return (
            f"Frontier({len(self)} points on {self.num_devices} devices of "
            f"'{self._settings.cluster['name']}', from {' to '.join(ends)}; {self.guarantee})"
        )

    def _repr_html_(self) -> str:
        points = self._costs
        if not points:
            return html_table(self.title, FRONTIER_COLUMNS, ())
        picture = pages.picture_html(points, named_points(points))
        table = html_table(self.title, FRONTIER_COLUMNS, frontier_rows(points, HTML_ROWS))
        return f"{picture}{table}"

    def plot(self, axes: Any = None) -> Any:
        """Draws memory per device (GiB) against step time (ms) on ``axes`` of matplotlib, by
        default of a figure of its own, and returns these axes.

        Raises:
            TensorOptError: matplotlib is not installed.
        """
        named = named_points(self._costs) if self._costs else {}
        return pages.draw_frontier(self._costs, named, axes)

    def report(
        self,
        path: str | Path,
        *,
        memory_limit: float | None = None,
        counts: Sequence[ProfileRow] = (),
        peak: Peak | None = None,
    ) -> None:
        """Writes a page of the frontier to one HTML file (docs/report.md).

        Args:
            memory_limit: in bytes per device, at which a pick is named first; by default
                that of ``find_strategy``.
            counts: rows of ``profile``, shown as step time and cost by number of devices.
            peak: of ``simulate_memory``, for the point that is picked at ``memory_limit``.

        Raises:
            TensorOptError: Jinja2 is not installed, or the file cannot be written.
        """
        additions = planner.Additions(memory_limit, counts=counts, peak=peak)
        planner.write_frontier_page(path, self.view, additions)

    @property
    def view(self) -> FrontierView:
        """What pages show of it."""
        return FrontierView(
            OURS,
            self.title,
            self._costs,
            self.default_memory_limit,
            self._settings,
            self._captured,
            self.plan,
            self.shape,
        )

    @property
    def title(self) -> str:
        """Devices, number of points, what the search guarantees, its time."""
        return (
            f"Cost frontier on {self.num_devices} devices: {len(self)} points "
            f"({self.guarantee}), searched in {format_seconds(self.search_seconds)}"
        )

    @property
    def fastest(self) -> FrontierPoint:
        """The least time, whatever the memory."""
        return self[-1]

    @property
    def smallest(self) -> FrontierPoint:
        """The least memory, whatever the time."""
        return self[0]

    @property
    def knee(self) -> FrontierPoint:
        """The turning point: farthest below the line that joins the ends, on
        logarithmic scales."""
        return self[knee_index(self._costs)]

    def at(self, memory_bytes: float) -> FrontierPoint:
        """The fastest point that needs at most ``memory_bytes`` per device.

        By a limit that the search was told (``mini_time``, ``profile``) it is within
        ``guarantee`` of the fastest strategy that fits; by any other, of the fastest
        that needs at most ``memory_bytes / (1 + guarantee.epsilon)``.

        Raises:
            TensorOptError: no point is that small; says the least memory.
        """
        index = bisect_right([memory for memory, _ in self._costs], memory_bytes)
        if index == 0:
            least = self.least_memory_bytes
            raise TensorOptError(
                f"no strategy on {self.num_devices} devices needs at most "
                f"{format_bytes(memory_bytes)} per device: the least is {format_bytes(least)}; "
                f"{limit_advice(least, self.device_bytes)}use more devices (option "
                "'mini_parallelism' finds how many), recompute=True, or max_micro_batches"
            )
        return self[index - 1]

    def plan(self, index: int) -> Plan | StagedPlan:
        """The plan of a point."""
        _, _, found, number = self._places[index]
        return self._found[found].plan(number, self._costs, self.guarantee)

    def whole_plan(self, index: int) -> Plan:
        """The plan of a point for those who take none in stages.

        Raises:
            TensorOptError: it is in stages.
        """
        return without_stages(self.plan(index), "what tells of single operators")

    def thinned(self, count: int) -> list[FrontierPoint]:
        """At most ``count`` points, evenly spaced by index, ends included; of one the fastest.

        Raises:
            TensorOptError: ``count`` is below 1.
        """
        return [self[i] for i in thinned_indices(len(self), count)]

    def to_records(self) -> list[dict[str, float]]:
        """The points as plain records."""
        return [{"memory_bytes": memory, "time_s": time} for memory, time in self._costs]


def _best(several: Sequence[FrontierPart]) -> Iterator[Place]:
    """The points that no other one beats, by ascending memory."""
    places = sorted(
        (memory, time, space, number)
        for space, found in enumerate(several)
        for number, (memory, time) in enumerate(found.points)
    )
    least_s = math.inf
    for place in places:
        if place[1] < least_s:
            least_s = place[1]
            yield place
