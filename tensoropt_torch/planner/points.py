"""Some of the (memory, time) points of a frontier, and their names."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.units import format_bytes, format_seconds

OURS = "TensorOpt"  # among baselines
BEST = "best baseline"  # of all of them, for every limit
FRONTIER_COLUMNS = ("point", "memory per device", "step time", "")


def pick_index(points: Sequence[tuple[float, float]], memory_limit: float) -> int | None:
    """Of (memory, time) points sorted by memory the one that ``mini_time`` picks at a limit in
    bytes per device; None: nothing fits."""
    index = bisect_right([memory for memory, _ in points], memory_limit)
    return index - 1 if index else None


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


def named_points(
    points: Sequence[tuple[float, float]], chosen: float = -1.0
) -> dict[int, list[str]]:
    """Names of points by their index: the ends, the knee, and the one that needs ``chosen``
    bytes."""
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
    return names


def notable_points(
    points: Sequence[tuple[float, float]], share: float = 0.005
) -> list[tuple[float, float]]:
    """Of (memory, time) points by ascending memory those that are by this share faster than the one
    before, and the last: for every limit one of them takes at most so much longer than any."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if not kept or point[1] <= (1 - share) * kept[-1][1] or point is points[-1]:
            kept.append(point)
    return kept


def frontier_rows(
    points: Sequence[tuple[float, float]], rows: int, chosen: float = -1.0
) -> Iterator[tuple[str, str, str, str]]:
    """``FRONTIER_COLUMNS`` of about ``rows`` of the (memory, time) points. Ends, knee and the
    point that needs ``chosen`` bytes are among them, and named."""
    names = named_points(points, chosen)
    for index in sorted({*thinned_indices(len(points), rows), *names}):
        memory, time_s = points[index]
        row_names = ", ".join(names.get(index, ()))
        yield str(index), format_bytes(memory), format_seconds(time_s), row_names


def thinned_indices(length: int, count: int) -> list[int]:
    """At most ``count`` indices, evenly spaced, ends included; of one the last.

    Raises:
        TensorOptError: ``count`` is below 1.
    """
    if count < 1:
        raise TensorOptError(f"a number of points is at least 1, not {count}")
    if length <= count:
        return list(range(length))
    if count == 1:
        return [length - 1]
    return [round(i * (length - 1) / (count - 1)) for i in range(count)]
