"""The page of a frontier: what its points cost, what they do, and why.

``FrontierView`` is what is needed of a frontier, ``Additions`` what may stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from tensoropt_torch.checks import check_memory_limit
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.pages.charts import Chart, Line, rounded
from tensoropt_torch.pages.page import Page
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.planner.described_points import PlanWords, PointView, described_points
from tensoropt_torch.planner.device_counts import ProfileRow, cost_of_step, rates_of
from tensoropt_torch.planner.explanation import explanation_of
from tensoropt_torch.planner.folding import fold_choices, fold_fallbacks
from tensoropt_torch.planner.points import pick_index
from tensoropt_torch.telling.provenance import provenance
from tensoropt_torch.units import dtype_name, format_costs, format_seconds

Points = Sequence[tuple[float, float]]


class Peak(Protocol):
    """A simulated peak: bytes of one device, in all and by what they are for."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def categories(self) -> Mapping[Any, int]: ...


@dataclass(frozen=True)
class FrontierView:
    """A frontier, by its short name and its title: its (memory_bytes, time_s) points by
    ascending memory, and how to get their plans; the limit of a pick if none is given."""

    name: str
    title: str
    points: Points
    default_memory_limit: float
    settings: Settings
    captured: CapturedModel
    plan: Callable[[int], Plan]


class Strategies(Protocol):
    """Those of one system: (memory_bytes, time_s) points by ascending memory, and their plans."""

    @property
    def name(self) -> str: ...
    @property
    def points(self) -> Points: ...
    def plan(self, index: int, /) -> Plan: ...


@dataclass(frozen=True)
class Additions:
    """What stands beside a frontier.

    Attributes:
        memory_limit: bytes per device; by default that of the frontier.
        baselines: strategies of other systems.
        counts: what ``profile`` found for several numbers of devices.
        peak: the simulated peak of the point that ``mini_time`` picks at the limit.
        picked: numbers of the points that are picked at the limit by simulated peaks, by the
            names of the frontier and of the baselines; by default picks are those of the sums.
    """

    memory_limit: float | None = None
    baselines: Sequence[Strategies] = ()
    counts: Sequence[ProfileRow] = ()
    peak: Peak | None = None
    picked: Mapping[str, int | None] | None = None

    def pick(self, name: str, points: Points, limit: float) -> int | None:
        """What is picked of some strategies."""
        return pick_index(points, limit) if self.picked is None else self.picked[name]


@dataclass(frozen=True)
class CountView:
    """A number of devices, and what a step costs there, in words by objective."""

    row: ProfileRow
    costs: Mapping[str, str]


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
    limit = _limit(view, additions.memory_limit)
    plans = PlanWords()
    pick = additions.pick(view.name, view.points, limit)
    shown = limit if pick is None else view.points[pick][0]
    described = described_points(view.points, view.plan, shown, plans)
    outlines = plans.outlines([view.plan(index) for index in range(len(view.points))])
    choices = fold_choices([point.details for point in described])
    charts = [
        _frontier_chart(view, additions, described),
        *_count_charts(view.settings, additions.counts),
    ]
    return Page("frontier.html.jinja", view.title).html(
        charts,
        settings=view.settings,
        model=_model_in_words(view.captured),
        limit=limit,
        points=described,
        choices=choices,
        picks=_picks(view, additions, described, limit, outlines),
        rows=[
            (index, *point, outline)
            for index, (point, outline) in enumerate(zip(view.points, outlines, strict=True))
        ],
        baselines=_beside(view, additions, limit, plans),
        counts=[_count_view(view.settings, row) for row in additions.counts],
        peak=additions.peak,
        fallbacks=fold_fallbacks(explanation_of(view.captured, view.settings)),
        origins=provenance(view.settings),
        sizes=tuple(size for size, _ in view.settings.mesh_axes),
        axes=_axes(view.settings),
        pick=pick,
    )


@dataclass(frozen=True)
class _Pick:
    """Which of some strategies is picked at the limit, and what it does."""

    name: str
    points: Points
    picked: int | None
    summary: str


def _beside(
    view: FrontierView, additions: Additions, limit: float, plans: PlanWords
) -> list[_Pick]:
    """What is picked of the frontier and of the baselines, if there are any."""
    if not additions.baselines:
        return []
    found = []
    for one in (view, *additions.baselines):
        picked = additions.pick(one.name, one.points, limit)
        summary = "" if picked is None else plans.details(one.plan(picked)).summary
        found.append(_Pick(one.name, one.points, picked, summary))
    return found


def _model_in_words(captured: CapturedModel) -> str:
    """What a model is known by to the planner: its parameters, and what it is called with."""
    values = [source.placeholder.meta["val"] for source in captured.parameters]
    dtypes = dict.fromkeys(dtype_name(value.dtype) for value in values)
    inputs = []
    for source in captured.inputs:
        value = source.placeholder.meta.get("val")
        if isinstance(value, torch.Tensor):
            shape = " x ".join(map(str, value.shape))
            inputs.append(f"{source.names[0]} ({shape}, {str(value.dtype).removeprefix('torch.')})")
    number = sum(value.numel() for value in values)
    return (
        f"A model of {number:,} parameters ({', '.join(dtypes)}) in {len(values)} tensors, "
        f"called with {', '.join(inputs)} on all devices together."
    )


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


def _line(name: str, points: Points, names: Mapping[int, str]) -> Line:
    """Of a frontier; ``names`` of points by index."""
    numbers = (
        f"point {i} ({names[i]})" if i in names else f"point {i}" for i in range(len(points))
    )
    texts = [
        f"{number}: {format_costs(*point)}" for number, point in zip(numbers, points, strict=True)
    ]
    return Line(
        name,
        [memory / 2**30 for memory, _ in points],
        [time_s * 1e3 for _, time_s in points],
        texts,
        "steps",
    )


def _frontier_chart(
    view: FrontierView, additions: Additions, described: Sequence[PointView]
) -> Chart:
    names = {point.index: point.names for point in described if point.names}
    lines = [_line(view.name, view.points, names)]
    lines += [_line(one.name, one.points, {}) for one in additions.baselines if one.points]
    ends = " to ".join(format_costs(*view.points[index]) for index in (0, -1))
    return Chart(
        "frontier",
        f"Cost frontier of {len(view.points)} points, from {ends}; the table below has all points",
        lines,
        "memory per device (GiB)",
        "step time (ms)",
        logarithmic=True,
    )


def _picks(
    view: FrontierView,
    additions: Additions,
    described: Sequence[PointView],
    limit: float,
    outlines: Sequence[str],
) -> dict[str, Any]:
    """What the page's script needs to name the pick at any limit, and to say what it does."""
    return {
        "limit": limit,
        "frontier": [
            {**_figures(*point), "text": format_costs(*point), "outline": outline}
            for point, outline in zip(view.points, outlines, strict=True)
        ],
        "baselines": {
            one.name: [_figures(*point) for point in one.points] for one in additions.baselines
        },
        "described": [point.index for point in described],
    }


def _figures(memory: float, time_s: float) -> dict[str, float]:
    """Memory as it is, since limits are compared with it."""
    return {"memory": memory, "time": rounded(time_s)}


def _count_view(settings: Settings, row: ProfileRow) -> CountView:
    if row.time_s is None:
        return CountView(row, {})
    return CountView(row, {name: text for name, (_, text) in _costs(settings, row).items()})


def _costs(settings: Settings, row: ProfileRow) -> dict[str, tuple[float, str]]:
    """What a step costs, as figures and in words."""
    assert row.time_s is not None
    rates = rates_of(parse_cluster(settings.cluster, "settings").device)
    seconds = row.num_devices * row.time_s
    found = {"device-seconds": (seconds, format_seconds(seconds))}
    if (watts := rates["energy"]) is not None:
        joules = cost_of_step("energy", watts, row.num_devices, row.time_s)
        found["energy (J)"] = joules, f"{joules:.4g}"
    if (price := rates["money"]) is not None:
        money = cost_of_step("money", price, row.num_devices, row.time_s)
        found["money (of 1000 steps)"] = 1000 * money, f"{1000 * money:.4g}"
    return found


def _count_charts(settings: Settings, counts: Sequence[ProfileRow]) -> list[Chart]:
    feasible = [row for row in counts if row.time_s is not None]
    if not feasible:
        return []
    devices = [row.num_devices for row in feasible]
    times = [row.time_s * 1e3 for row in feasible if row.time_s is not None]
    texts = [
        f"{n} devices: {time_ms:.4g} ms a step" for n, time_ms in zip(devices, times, strict=True)
    ]
    charts = [
        Chart(
            "counts-time",
            "Least step time by number of devices; the table below has the figures",
            [Line("step time", devices, times, texts)],
            "devices",
            "step time (ms)",
        )
    ]
    name = list(_costs(settings, feasible[0]))[-1]
    costs = [_costs(settings, row)[name] for row in feasible]
    texts = [f"{n} devices: {name} {text}" for n, (_, text) in zip(devices, costs, strict=True)]
    line = Line(name, devices, [cost for cost, _ in costs], texts)
    label = f"{name} of a step by number of devices; the table below has the figures"
    return [*charts, Chart("counts-cost", label, [line], "devices", name)]
