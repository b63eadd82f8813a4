"""The cost frontier: every strategy not beaten in both time and memory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.html_table import html_table
from tensoropt_torch.plan import Guarantee, Plan, Settings
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

FRONTIER_COLUMNS = ("point", "memory per device", "step time", "")
HTML_ROWS = 12


@dataclass(frozen=True)
class FrontierPoint:
    """One point: predicted memory per device (bytes) and step time (s)."""

    memory_bytes: float
    time_s: float
    index: int
    _frontier: Frontier = field(repr=False)

    @property
    def frontier(self) -> Frontier:
        """That it is a point of."""
        return self._frontier

    @property
    def plan(self) -> Plan:
        """The strategy of this point, ready to be executed."""
        return self._frontier.plan(self.index)

    def __repr__(self) -> str:
        costs = format_costs(self.memory_bytes, self.time_s)
        return f"FrontierPoint({self.index} of {len(self._frontier)}: {costs})"


class Frontier(Sequence[FrontierPoint]):
    """Points by ascending memory and descending time.

    ``guarantee`` says how far the points may be from the best ones; section 4 of
    the paper.
    """

    def __init__(
        self,
        result: _C.SearchResult,
        settings: Settings,
        captured: CapturedModel,
        complete: bool,
        seconds: float,
    ) -> None:
        self._result = result
        self.guarantee = Guarantee(
            bool(result.exact), float(result.epsilon), tuple(result.heuristics), complete
        )
        self._settings = settings
        self._captured = captured
        self._points = [
            FrontierPoint(memory, time, index, self)
            for index, (memory, time) in enumerate(result.points)
        ]
        self.search_seconds = seconds

    @property
    def stats(self) -> dict[str, float]:
        """Counts and seconds of the search, see ``csrc/search/frontier_tracking.h``."""
        return dict(self._result.stats)

    @property
    def num_devices(self) -> int:
        return self._settings.num_devices

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def least_memory_bytes(self) -> float:
        """The least memory per device with which any strategy does."""
        return float(self._result.min_memory)

    @overload
    def __getitem__(self, index: int) -> FrontierPoint: ...
    @overload
    def __getitem__(self, index: slice) -> list[FrontierPoint]: ...
    def __getitem__(self, index: int | slice) -> FrontierPoint | list[FrontierPoint]:
        return self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        if not self._points:
            return f"Frontier(no points on {self.num_devices} devices)"
        ends = (format_costs(p.memory_bytes, p.time_s) for p in (self.smallest, self.fastest))
        return (
            f"Frontier({len(self)} points on {self.num_devices} devices of "
            f"'{self._settings.cluster['name']}', from {' to '.join(ends)}; {self.guarantee})"
        )

    def _repr_html_(self) -> str:
        points = [(p.memory_bytes, p.time_s) for p in self]
        rows = frontier_rows(points, HTML_ROWS) if points else ()
        return html_table(self.title, FRONTIER_COLUMNS, rows)

    @property
    def title(self) -> str:
        """Devices, number of points, what the search guarantees, its time."""
        return (
            f"Cost frontier on {self.num_devices} devices: {len(self)} points "
            f"({self.guarantee}), searched in {format_seconds(self.search_seconds)}"
        )

    def __iter__(self) -> Iterator[FrontierPoint]:
        return iter(self._points)

    @property
    def fastest(self) -> FrontierPoint:
        """The least time, whatever the memory."""
        return self._points[-1]

    @property
    def smallest(self) -> FrontierPoint:
        """The least memory, whatever the time."""
        return self._points[0]

    @property
    def knee(self) -> FrontierPoint:
        """The turning point: farthest below the line that joins the ends, on
        logarithmic scales."""
        return self._points[knee_index([(p.memory_bytes, p.time_s) for p in self._points])]

    def at(self, memory_bytes: float) -> FrontierPoint:
        """The fastest point that needs at most ``memory_bytes`` per device.

        By a limit that the search was told (``mini_time``, ``profile``) it is within
        ``guarantee`` of the fastest strategy that fits; by any other, of the fastest
        that needs at most ``memory_bytes / (1 + guarantee.epsilon)``.

        Raises:
            TensorOptError: no point is that small; says the least memory.
        """
        index = bisect_right([p.memory_bytes for p in self._points], memory_bytes)
        if index == 0:
            raise TensorOptError(
                f"no strategy on {self.num_devices} devices needs at most "
                f"{format_bytes(memory_bytes)} per device: the least is "
                f"{format_bytes(self.least_memory_bytes)}; raise the memory limit to that, or use "
                "more devices (option 'mini_parallelism' finds how many)"
            )
        return self._points[index - 1]

    def plan(self, index: int) -> Plan:
        """The plan of a point."""
        points = tuple((p.memory_bytes, p.time_s) for p in self._points)
        strategy = self._result.unroll(index)
        return Plan.of(self._settings, self._captured, strategy, points, self.guarantee)

    def thinned(self, count: int) -> list[FrontierPoint]:
        """At most ``count`` points, evenly spaced by index, ends included."""
        return [self._points[i] for i in thinned_indices(len(self), count)]

    def to_records(self) -> list[dict[str, float]]:
        """The points as plain records."""
        return [{"memory_bytes": p.memory_bytes, "time_s": p.time_s} for p in self._points]


def knee_index(points: Sequence[tuple[float, float]]) -> int:
    """The turning point of (memory, time) points sorted by memory."""
    (least, slowest), (most, fastest) = points[0], points[-1]
    width, height = math.log(most / least), math.log(slowest / fastest)
    if width <= 0 or height <= 0:
        return len(points) - 1

    def distance(index: int) -> float:
        memory, time_s = points[index]
        return math.log(memory / least) / width + math.log(time_s / fastest) / height

    return min(range(len(points)), key=distance)


def frontier_rows(
    points: Sequence[tuple[float, float]], rows: int, chosen: float = -1.0
) -> Iterator[tuple[str, str, str, str]]:
    """``FRONTIER_COLUMNS`` of about ``rows`` of the (memory, time) points. Ends, knee and the
    point that needs ``chosen`` bytes are among them, and named."""
    names: dict[int, list[str]] = {}
    for index, name in (
        (0, "smallest"),
        (knee_index(points), "knee"),
        (len(points) - 1, "fastest"),
    ):
        names.setdefault(index, []).append(name)
    for index, (memory, _) in enumerate(points):
        if memory == chosen:
            names.setdefault(index, []).append("chosen")
    for index in sorted({*thinned_indices(len(points), rows), *names}):
        memory, time_s = points[index]
        row_names = ", ".join(names.get(index, ()))
        yield str(index), format_bytes(memory), format_seconds(time_s), row_names


def thinned_indices(length: int, count: int) -> list[int]:
    """At most ``count`` indices, evenly spaced, ends included."""
    if length <= count:
        return list(range(length))
    return [round(i * (length - 1) / (count - 1)) for i in range(count)]
