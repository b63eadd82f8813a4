"""The charts on the page of a frontier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch.pages.charts import Chart, Line, Mark
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.page_peaks import Peaks
from tensoropt_torch.units import format_bytes, format_step

Points = Sequence[tuple[float, float]]

GIB = 2**30
# What needs so many times the memory of a device is not drawn at first.
_FAR_BEYOND = 1.6
_MOST_POINTS = 400  # of the curve of memory


@dataclass(frozen=True)
class Seconds:
    """The unit in which a chart has times."""

    name: str
    each: float

    @staticmethod
    def of(times: Sequence[float]) -> Seconds:
        """Seconds, or milliseconds if all are short."""
        return Seconds("s", 1.0) if max(times) >= 0.5 else Seconds("ms", 1e-3)


def frontier_chart(
    ours: tuple[str, Points],
    named: Mapping[int, str],
    others: Sequence[tuple[str, Points]],
    peaks: Peaks,
    limits: tuple[float, float, float],
) -> Chart:
    """Step time over the memory that is kept, of our points and of what others do, each with its
    name; ``named`` are points that have names, by index. ``limits`` are bytes of a device: of what
    is kept, where a reader's own limit begins; of what a plan may use, and of all of it, which hold
    for peaks, if these are known."""
    name, points = ours
    chosen, limit, device_bytes = limits
    unit = Seconds.of([time_s for _, time_s in points])
    lines = [_our_line(name, points, unit, named, peaks, limit)]
    lines += [_line(other, found, unit) for other, found in others if found]
    ends = " to ".join(_costs(*points[index]) for index in (0, -1))
    of_limit, of_device = ("limit", "memory of a device")
    if peaks.known:
        of_limit, of_device = "peak at the limit,", "peak at a device's"
    return Chart(
        "frontier",
        f"Step time over memory of {len(points)} plans, from {ends}; the table below has all",
        lines,
        "memory that a device keeps (GiB)",
        f"step time ({unit.name})",
        logarithmic=True,
        marks=(
            Mark("x", chosen / GIB, "", "chosen"),
            Mark("x", peaks.kept_at(limit) / GIB, f"{of_limit} {format_bytes(limit)}", "limit"),
            Mark(
                "x",
                peaks.kept_at(device_bytes) / GIB,
                f"{of_device} {format_bytes(device_bytes)}",
            ),
        ),
        most_x=_FAR_BEYOND * max(device_bytes, points[0][0]) / GIB,
    )


def _costs(memory: float, time_s: float) -> str:
    return f"keeps {format_bytes(memory)} per device, {format_step(time_s)} a step"


def _line(name: str, points: Points, unit: Seconds) -> Line:
    return Line(
        name,
        [memory / GIB for memory, _ in points],
        [time_s / unit.each for _, time_s in points],
        [f"{_costs(*point)} (point {index})" for index, point in enumerate(points)],
        "steps",
    )


def _our_line(
    name: str,
    points: Points,
    unit: Seconds,
    named: Mapping[int, str],
    peaks: Peaks,
    limit: float,
) -> Line:
    """With names and peaks; those whose peaks are above the limit are faint."""
    found = [peaks.of(index) for index in range(len(points))]
    texts = []
    for index, (point, peak) in enumerate(zip(points, found, strict=True)):
        at_peak = f", peak {peak}" if peak else ""
        names = f", {named[index]}" if index in named else ""
        texts.append(f"{_costs(*point)}{at_peak} (point {index}{names})")
    faint = [index for index, peak in enumerate(found) if peak and peak.num_bytes > limit]
    line = _line(name, points, unit)
    return replace(line, texts=texts, labels=list(named.items()), faint=faint)


def memory_chart(
    curve: Sequence[int], begins: Mapping[str, int], limit: float, peak_bytes: int
) -> Chart:
    """Bytes of a device over the events of a step, each one something allocated or freed."""
    x, y = _thinned(curve)
    names = {"forward": "forward", "backward": "backward", "optimizer": "update"}
    marks = [Mark("x", at, names[phase]) for phase, at in begins.items() if phase in names]
    at_peak = max(range(len(y)), key=y.__getitem__)
    return Chart(
        "memory",
        f"Memory of a device over a step; at its peak {format_bytes(peak_bytes)}",
        [
            Line(
                "alive",
                x,
                [value / GIB for value in y],
                [format_bytes(value) for value in y],
                "area",
                [(at_peak, f"peak {format_bytes(peak_bytes)}")],
            )
        ],
        "events of a step, in their order",
        "memory alive (GiB)",
        marks=(*marks, Mark("y", limit / GIB, f"limit {format_bytes(limit)}", "limit")),
        scales=False,
    )


def _thinned(curve: Sequence[int]) -> tuple[list[int], list[int]]:
    """The most of each of some pieces, so that peaks stay."""
    width = max(1, math.ceil(len(curve) / _MOST_POINTS))
    starts = range(0, len(curve), width)
    return list(starts), [max(curve[start : start + width]) for start in starts]


def count_charts(
    counts: Sequence[ProfileRow], costs: Mapping[int, tuple[str, float, str]]
) -> Iterator[Chart]:
    """Step time, and what a step costs, by number of devices. ``costs``: by that number what is
    counted, how much, and that in words."""
    feasible = [row for row in counts if row.time_s is not None]
    if not feasible:
        return
    devices = [row.num_devices for row in feasible]
    times = [row.time_s for row in feasible if row.time_s is not None]
    unit = Seconds.of(times)
    texts = [f"{_devices(n)}: {format_step(t)} a step" for n, t in zip(devices, times, strict=True)]
    yield Chart(
        "counts-time",
        "Least step time by number of devices; the table below has the figures",
        [Line("step time", devices, [t / unit.each for t in times], texts)],
        "devices",
        f"step time ({unit.name})",
    )
    name = costs[devices[0]][0]
    texts = [f"{_devices(n)}: {name} {costs[n][2]}" for n in devices]
    yield Chart(
        "counts-cost",
        f"{name} of a step by number of devices; the table below has the figures",
        [Line(name, devices, [costs[n][1] for n in devices], texts)],
        "devices",
        name,
    )


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
