"""The page of a frontier: what its points cost, what they do, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tensoropt_torch.checks import check_memory_limit
from tensoropt_torch.config import Cluster, parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.pages.charts import Chart, rounded
from tensoropt_torch.pages.page import Page, write_page
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.planner.described_points import PlanWords, PointView, described_points
from tensoropt_torch.planner.device_counts import ProfileRow, cost_of_step, rates_of
from tensoropt_torch.planner.explanation import explanation_of
from tensoropt_torch.planner.folding import fold_choices, fold_fallbacks
from tensoropt_torch.planner.frontier_view import FrontierView, Peak
from tensoropt_torch.planner.page_charts import Points, count_charts, frontier_chart, memory_chart
from tensoropt_torch.planner.page_opening import (
    Sentence,
    moved_and_waited,
    opening,
    with_less_memory,
)
from tensoropt_torch.planner.page_others import (
    Beside,
    Strategies,
    beside,
    seconds_beside,
    why_it_does_not_fit,
)
from tensoropt_torch.planner.page_peaks import Peaks, PointPeak
from tensoropt_torch.planner.page_splits import splits_of
from tensoropt_torch.planner.page_words import (
    Rate,
    gains,
    model_in_words,
    model_name,
    number_of_parameters,
    overlap_in_words,
)
from tensoropt_torch.planner.points import BEST, notable_points, pick_index
from tensoropt_torch.planner.step_work import step_work
from tensoropt_torch.telling.provenance import provenance
from tensoropt_torch.telling.timeline import Timeline, timeline_of
from tensoropt_torch.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Additions:
    """What stands beside a frontier.

    Attributes:
        memory_limit: bytes per device; by default that of the frontier.
        baselines: strategies of other systems.
        counts: what ``profile`` found for several numbers of devices.
        peak: the simulated peak of the point that ``mini_time`` picks at the limit.
        peaks: simulated peaks of points of the frontier, by their numbers, as far as known.
        picked: numbers of the points that are picked at the limit by simulated peaks, by the
            names of the frontier and of the baselines; by default picks are those of the sums.
        picked_peaks: their simulated peaks, as far as known.
    """

    memory_limit: float | None = None
    baselines: Sequence[Strategies] = ()
    counts: Sequence[ProfileRow] = ()
    peak: Peak | None = None
    peaks: Mapping[int, int] = field(default_factory=dict)
    picked: Mapping[str, int | None] | None = None
    picked_peaks: Mapping[str, int] = field(default_factory=dict)

    def pick(self, name: str, points: Points, limit: float) -> int | None:
        """What is picked of some strategies."""
        return pick_index(points, limit) if self.picked is None else self.picked[name]


@dataclass(frozen=True)
class CountView:
    """A number of devices, what they do in a second, and what a step costs there, in words by
    objective."""

    row: ProfileRow
    speed: str
    costs: Mapping[str, str]


def write_frontier_page(path: str | Path, view: FrontierView, additions: Additions) -> None:
    """Writes the page to one HTML file.

    Raises:
        TensorOptError: as ``frontier_page``, or the file cannot be written.
    """
    write_page(path, frontier_page(view, additions))


def frontier_page(view: FrontierView, additions: Additions) -> str:
    """The page, in HTML.

    Raises:
        TensorOptError: a package that pages need is not installed, the memory limit is not
            allowed, or the frontier has no points.
    """
    if not view.points:
        raise TensorOptError(
            f"there is nothing to report: {view.settings.where} has no strategy within the limit "
            "of the search; search without memory_limit, or with more devices"
        )
    return _Frontier(view, additions).html()


class _Frontier:
    """What the page shows of a frontier."""

    def __init__(self, view: FrontierView, additions: Additions) -> None:
        self._view = view
        self._additions = additions
        self._cluster: Cluster = parse_cluster(view.settings.cluster, "settings")
        self._words = PlanWords()
        self._limit = _limit(view, additions.memory_limit)
        self._pick = additions.pick(view.name, view.points, self._limit)
        shown = self._limit if self._pick is None else view.points[self._pick][0]
        self._described = described_points(view.points, view.plan, shown, self._words)
        captured = view.captured.batch or view.captured
        self._rate = Rate(
            step_work(captured, view.settings.of_variant(False, 1)),
            self._cluster.device,
            view.settings.num_devices,
        )

    def html(self) -> str:
        view, settings = self._view, self._view.settings
        timeline = timeline_of(self._first.details)
        peak = self._additions.peak if self._pick is not None else None
        return Page("frontier.html.jinja", self._title).html(
            self._charts(peak),
            settings=settings,
            model=model_in_words(view.captured.batch or view.captured),
            search=view.title,
            limit=self._limit,
            device=self._cluster.device,
            share=self._limit / self._cluster.device.memory_bytes,
            tiles=self._tiles(),
            sentences=self._sentences(timeline, peak),
            rate=self._rate,
            first=self._first,
            second=self._second,
            timeline=timeline,
            overlap=overlap_in_words(settings, timeline),
            points=self._described,
            gains=gains(self._described),
            moved_and_waited=moved_and_waited,
            choices=fold_choices([point.details for point in self._described]),
            splits=splits_of,
            picks=self._picks(),
            rows=[
                (index, *point, self._peaks.of(index)) for index, point in enumerate(view.points)
            ],
            baselines=self._beside,
            counts=[self._count(row) for row in self._additions.counts],
            peak=peak,
            peaks=self._peaks,
            fallbacks=fold_fallbacks(explanation_of(view.captured, settings)),
            origins=provenance(settings),
            staged=any(point.rows for point in self._described),
            axes=_axes(settings),
            pick=self._pick,
            named=[point for point in self._described if point.names],
        )

    def _tiles(self) -> list[tuple[str, str]]:
        """None where nothing fits."""
        if self._pick is None:
            return []
        peak = self._peaks.known.get(self._pick)
        memory = (
            ("memory of a device at its peak", format_bytes(peak))
            if peak
            else ("memory that a device keeps", format_bytes(self._first.memory_bytes))
        )
        return list(self._rate.tiles(self._first.time_s, memory))

    def _sentences(self, timeline: Timeline, peak: Peak | None) -> list[Sentence]:
        """What the pick does, and what less memory would cost."""
        view, first = self._view, self._first
        found = [
            *opening(
                first.details,
                timeline,
                self._peaks.known.get(first.index),
                peak.categories if peak else {},
                self._cluster.device.memory_bytes,
            )
        ]
        if self._pick is not None:
            less = with_less_memory(
                view.points,
                self._pick,
                self._limit,
                self._peaks,
                lambda index: self._words.details(view.plan(index)),
            )
            found.append(("With less memory", less))
        return found

    def _outlines(self) -> list[str]:
        """Of all points; of those in stages, whose parts are planned when they are looked into,
        how many there are."""
        view = self._view
        shapes = [view.shape(index) for index in range(len(view.points))]
        whole = [view.plan(index) for index, (stages, _) in enumerate(shapes) if stages == 1]
        told = iter(self._words.outlines([plan for plan in whole if isinstance(plan, Plan)]))
        return [
            next(told) if stages == 1 else f"{stages} stages run {micro} micro-batches in turn."
            for stages, micro in shapes
        ]

    @property
    def _title(self) -> str:
        captured, count = self._view.captured, self._view.settings.num_devices
        name = self._cluster.device.name
        devices = f"{count} x {name}" if count > 1 else name
        return (
            f"{model_name(captured)}, {number_of_parameters(captured)}, on {devices} "
            f"({self._cluster.name})"
        )

    @property
    def _first(self) -> PointView:
        """The pick, or what needs the least."""
        if self._pick is None:
            return self._described[0]
        return next(point for point in self._described if point.index == self._pick)

    @property
    def _start(self) -> float:
        """The limit of sums, in bytes, with which the pick is that of the page."""
        if self._pick is None or self._additions.picked is None:
            return self._limit
        return self._view.points[self._pick][0]

    @property
    def _second(self) -> PointView:
        """The knee, to stand beside it, or another one where that is the first."""
        others = [point for point in self._described if point is not self._first]
        return next((p for p in others if "knee" in p.names), (others or [self._first])[0])

    def _charts(self, peak: Peak | None) -> list[Chart]:
        view, additions = self._view, self._additions
        chart = frontier_chart(
            (view.name, view.points),
            {point.index: point.names for point in self._described if point.names},
            list(self._others.items()),
            self._peaks,
            (self._start, self._limit, self._cluster.device.memory_bytes),
        )
        costs = {
            row.num_devices: _last_cost(view.settings, row)
            for row in additions.counts
            if row.time_s is not None
        }
        found = [chart, *count_charts(additions.counts, costs)]
        if peak:
            found.append(memory_chart(peak.curve, peak.begins, self._limit, peak.peak_bytes))
        return found

    @cached_property
    def _peaks(self) -> Peaks:
        """Of points of the frontier, as far as they are known."""
        additions = self._additions
        known = dict(additions.peaks)
        if self._pick is not None:
            if self._view.name in additions.picked_peaks:
                known[self._pick] = additions.picked_peaks[self._view.name]
            if additions.peak:
                known[self._pick] = additions.peak.peak_bytes
        return Peaks(self._view.points, known)

    @cached_property
    def _others(self) -> dict[str, Points]:
        """What others do, by their titles, without points that are hardly faster than others."""
        several = [one for one in self._additions.baselines if one.name != BEST]
        return {one.title: notable_points(one.points) for one in several}

    @cached_property
    def _beside(self) -> list[Beside]:
        """What is picked of the frontier and of the baselines, if there are any."""
        view, additions = self._view, self._additions
        if not additions.baselines:
            return []
        first = self._first
        fits = self._pick is not None
        compared = (
            "this is the pick"
            if fits
            else why_it_does_not_fit(first.details, first.memory_bytes, self._limit)
        )
        ours = Beside(
            view.name,
            first.memory_bytes,
            first.time_s if fits else None,
            self._peaks.known.get(first.index),
            compared,
            first.details.summary,
        )
        return [ours, *(self._other(one) for one in additions.baselines if one.name != BEST)]

    def _other(self, one: Strategies) -> Beside:
        additions = self._additions
        return beside(
            one,
            additions.pick(one.name, one.points, self._limit) if one.points else None,
            additions.picked_peaks.get(one.name),
            self._limit,
            self._first.details if self._pick is not None else None,
            self._words,
        )

    def _picks(self) -> dict[str, Any]:
        """What the page's script needs to name the pick at any limit."""
        outlines = self._outlines()
        texts = {text: number for number, text in enumerate(dict.fromkeys(outlines))}
        return {
            "start": self._start,
            "limit": self._limit,
            "pick": self._pick,
            "bySums": self._additions.picked is None,
            "peaks": [_peak_figures(self._peaks.of(i)) for i in range(len(self._view.points))],
            "outlines": list(texts),
            "outline": [texts[text] for text in outlines],
            "amount": self._rate.amount,
            "unit": self._rate.unit,
            "frontier": [_figures(*point) for point in self._view.points],
            "baselines": {
                name: [_figures(*point) for point in points]
                for name, points in self._others.items()
            },
            "beside": seconds_beside(self._beside[1:]),
            "described": [point.index for point in self._described],
        }

    def _count(self, row: ProfileRow) -> CountView:
        if row.time_s is None:
            return CountView(row, "", {})
        costs = {name: text for name, (_, text) in _costs(self._view.settings, row).items()}
        return CountView(row, self._rate.per_second(row.time_s) if self._rate.amount else "", costs)


def _limit(view: FrontierView, memory_limit: float | None) -> float:
    """The memory limit in bytes per device; without any, what the largest point needs."""
    check_memory_limit(memory_limit)
    if memory_limit is None:
        return view.default_memory_limit
    return memory_limit if math.isfinite(memory_limit) else view.points[-1][0]


def _axes(settings: Settings) -> list[str]:
    """The mesh axes in words, outermost first."""
    levels = parse_cluster(settings.cluster, "settings").levels
    return [f"{size} ({levels[level].name})" for size, level in settings.mesh_axes]


def _figures(memory: float, time_s: float) -> tuple[float, float]:
    """Memory as it is, since limits are compared with it."""
    return memory, rounded(time_s)


def _peak_figures(peak: PointPeak | None) -> tuple[float, bool] | None:
    return None if peak is None else (rounded(peak.num_bytes), peak.simulated)


def _costs(settings: Settings, row: ProfileRow) -> dict[str, tuple[float, str]]:
    """What a step costs, as figures and in words."""
    assert row.time_s is not None
    device = parse_cluster(settings.cluster, "settings").device
    rates, currency = rates_of(device), device.price_currency or "its currency"
    seconds = row.num_devices * row.time_s
    found = {"device-seconds": (seconds, format_seconds(seconds))}
    if (watts := rates["energy"]) is not None:
        joules = cost_of_step("energy", watts, row.num_devices, row.time_s)
        found["energy (J)"] = joules, f"{joules:.4g}"
    if (price := rates["money"]) is not None:
        money = cost_of_step("money", price, row.num_devices, row.time_s)
        found[f"money ({currency}, of 1000 steps)"] = 1000 * money, f"{1000 * money:.4g}"
    return found


def _last_cost(settings: Settings, row: ProfileRow) -> tuple[str, float, str]:
    """Money, if the cluster says a price."""
    name, (cost, text) = list(_costs(settings, row).items())[-1]
    return name, cost, text
