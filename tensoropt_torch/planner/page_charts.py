"""The charts on the page of a frontier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensoropt_torch.pages.charts import Chart, Line, Mark
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

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
        return Seconds("s", 1.0) if max(times) >= 2 else Seconds("ms", 1e-3)


def frontier_chart(
    ours: tuple[str, Points],
    named: Mapping[int, str],
    others: Sequence[tuple[str, Points]],
    chosen: float,
    limit: float,
    device_bytes: float,
) -> Chart:
    """Step time over memory, of our points and of what others do, each with its name; ``named``
    are points that have names, by index; ``chosen`` is where a reader's own limit begins. All bytes
    are of a device."""
    name, points = ours
    unit = Seconds.of([time_s for _, time_s in points])
    lines = [_line(name, points, unit, named)]
    lines += [_line(other, found, unit, {}) for other, found in others if found]
    ends = " to ".join(format_costs(*points[index]) for index in (0, -1))
    return Chart(
        "frontier",
        f"Step time over memory of {len(points)} plans, from {ends}; the table below has all",
        lines,
        "memory per device (GiB)",
        f"step time ({unit.name})",
        logarithmic=True,
        marks=(
            Mark("x", chosen / GIB, "", "chosen"),
            Mark("x", limit / GIB, f"limit {format_bytes(limit)}", "limit"),
            Mark("x", device_bytes / GIB, f"memory of a device {format_bytes(device_bytes)}"),
        ),
        most_x=_FAR_BEYOND * max(device_bytes, points[0][0]) / GIB,
    )


def _line(name: str, points: Points, unit: Seconds, named: Mapping[int, str]) -> Line:
    texts = [
        f"{format_costs(*point)} (point {index})" if not named else _point_text(index, point, named)
        for index, point in enumerate(points)
    ]
    return Line(
        name,
        [memory / GIB for memory, _ in points],
        [time_s / unit.each for _, time_s in points],
        texts,
        "steps",
        list(named.items()),
    )


def _point_text(index: int, point: tuple[float, float], named: Mapping[int, str]) -> str:
    names = f", {named[index]}" if index in named else ""
    return f"{format_costs(*point)} (point {index}{names})"


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
                [(at_peak, "peak")],
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
    texts = [
        f"{_devices(n)}: {format_seconds(t)} a step" for n, t in zip(devices, times, strict=True)
    ]
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
