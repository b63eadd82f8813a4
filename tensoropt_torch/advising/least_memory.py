"""The least memory of a model on some meshes, and what it tells of others."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

# Sizes and levels of the axes of a mesh, outermost first, and of levels the outermost is 0.
Axes = tuple[tuple[int, int], ...]


class LeastMemory:
    """The least bytes per device of any strategy of a model, by the number of micro-batches,
    whether there is recomputation, and the mesh: it depends on no speed, so meshes are those of any
    machines."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bool, Axes], float] = {}

    def of(self, count: int, recompute: bool, axes: Axes, find: Callable[[], float]) -> float:
        """What is known, or else is found now."""
        key = (count, recompute, axes)
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def bound(self, count: int, recompute: bool, axes: Axes) -> float:
        """What any strategy needs at least as far as smaller meshes tell: leaving an axis out, a
        strategy of this mesh is one of theirs, and a device then keeps at most as many times more
        as the axis has devices."""
        parts = 1
        while axes:
            known = self._known.get((count, recompute, axes))
            if known is not None:
                return known / parts
            parts *= axes[0][0]
            axes = _inside(axes)
        return 0.0

    def likely_first(
        self, counts: Sequence[int], recompute: bool, axes: Axes, limit: float
    ) -> int | None:
        """The place in ``counts`` of the first that probably fits ``limit``, else of the last:
        devices keep equal shares, and a part of that is for the rows of one micro-batch. Proves
        nothing. None: no least memory is known."""
        points = self._points(recompute, _num_devices(axes))
        likely = (place for place, count in enumerate(counts) if _line(points, count) <= limit)
        return next(likely, len(counts) - 1) if points else None

    def _points(self, recompute: bool, num_devices: int) -> list[tuple[float, float]]:
        """Of one micro-batch, its share of the batch and the bytes that so many devices would keep
        by the mesh whose number of devices is the nearest; the smallest share first."""
        nearest: dict[int, tuple[float, float]] = {}
        for (count, again, axes), least in self._known.items():
            ratio = _num_devices(axes) / num_devices
            found = (abs(math.log(ratio)), least * ratio)
            if again == recompute:
                nearest[count] = min(found, nearest.get(count, found))
        return sorted((1 / count, least) for count, (_, least) in nearest.items())


def first_fitting(counts: Sequence[int], fits: Callable[[int], bool], likely: int | None) -> int:
    """The place of the first of ``counts`` that fits, as all behind it do; their number if none
    does. Looks at the place ``likely`` first, then farther and farther from it; without one at
    the last, then in the middle."""
    below, fitting = -1, len(counts)
    place, step = (len(counts) - 1, len(counts)) if likely is None else (likely, 1)
    while below < place < fitting:
        if fits(counts[place]):
            fitting, place = place, place - step
        else:
            below, place = place, place + step
        step *= 2
    return bisect_left(counts, True, lo=below + 1, hi=fitting, key=fits)


def _inside(axes: Axes) -> Axes:
    """The mesh of those that one step on the outermost axis joins."""
    levels = [level for _, level in axes[1:]]
    return tuple((size, level - min(levels)) for size, level in axes[1:])


def _num_devices(axes: Axes) -> int:
    return math.prod(size for size, _ in axes)


def _line(points: Sequence[tuple[float, float]], count: int) -> float:
    """Through the two points beside a number of micro-batches; infinity where one point says
    nothing of fewer."""
    share = 1 / count
    if len(points) < 2:
        return next((least for x, least in points if share <= x), math.inf)
    segments = list(pairwise(points))
    (x0, y0), (x1, y1) = next((one for one in segments if share <= one[1][0]), segments[-1])
    return y0 + (share - x0) * (y1 - y0) / (x1 - x0)
