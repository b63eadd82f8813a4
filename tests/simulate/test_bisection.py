"""Which points of a frontier are simulated, against simulating all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tensoropt_torch.simulate import PeakTooLargeError, SimulatedPoint, fastest_within, refine
from tensoropt_torch.units import format_bytes

GB = 1e9


class Points(list[Any]):
    """What picking reads of a frontier."""

    num_devices, device_bytes = 4, 1e12


def frontier(generator: random.Random) -> Points:
    """Up to 2000 points, whose time falls as their sums grow."""
    count = generator.choice([1, 2, 10, 100, 2000])
    power = generator.uniform(0.2, 2)
    sums = sorted(generator.uniform(GB, 3 * GB) for _ in range(count))
    return Points(
        SimpleNamespace(memory_bytes=size, time_s=3 + 7 * (GB / size) ** power, index=index)
        for index, size in enumerate(sums)
    )


def proportional(generator: random.Random) -> Callable[[float], float]:
    ratio = generator.uniform(0.6, 3)
    return lambda size: ratio * size


def with_temporaries(generator: random.Random) -> Callable[[float], float]:
    more = generator.uniform(0.1, 4)
    return lambda size: size + more * GB


def nearly_flat(generator: random.Random) -> Callable[[float], float]:
    more = generator.uniform(1.5, 4)
    return lambda size: 0.1 * size + more * GB


def of_two_phases(generator: random.Random) -> Callable[[float], float]:
    more = generator.uniform(1, 3)
    return lambda size: max(1.1 * size, 0.2 * size + more * GB)


SHAPES = [proportional, with_temporaries, nearly_flat, of_two_phases]


def picked(
    points: Points, peaks: list[int], limit: float, monkeypatch: pytest.MonkeyPatch, **how: float
) -> tuple[int, int]:
    """The index of what is picked, and how many points were simulated."""
    seen: list[int] = []

    def simulated(point: Any, _: object) -> SimulatedPoint:
        seen.append(point.index)
        return SimulatedPoint(point, peaks[point.index])

    monkeypatch.setattr(refine, "_simulated", simulated)
    found = fastest_within(points, limit, **how)  # type: ignore[arg-type]
    assert found.peak_bytes == peaks[found.point.index] <= limit
    assert len(seen) == len(set(seen))
    return found.point.index, len(seen)


@pytest.mark.parametrize("shape", SHAPES)
def test_of_peaks_that_rise_the_fastest_that_fits_is_found_by_few(
    shape: Callable[[random.Random], Callable[[float], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = []
    for seed in range(100):
        generator = random.Random(seed)
        points, peak_of = frontier(generator), shape(generator)
        peaks = [int(peak_of(point.memory_bytes)) for point in points]
        limit = generator.choice(peaks)
        index, count = picked(points, peaks, limit, monkeypatch)
        assert index == max(i for i, peak in enumerate(peaks) if peak <= limit), seed
        simulated.append(count)
    assert sum(simulated) / len(simulated) <= 6, shape


@pytest.mark.parametrize("shape", SHAPES)
def test_of_peaks_that_hardly_fall_what_is_sure_to_fit_is_found(
    shape: Callable[[random.Random], Callable[[float], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where peaks are up to 2 % off a rising line, points that are 2 % below the limit on it are
    not faster than what is picked."""
    off = 0.02
    for seed in range(100):
        generator = random.Random(seed)
        points, peak_of = frontier(generator), shape(generator)
        line = [peak_of(point.memory_bytes) for point in points]
        peaks = [int(peak * generator.uniform(1 - off, 1 + off)) for peak in line]
        limit = generator.choice(line)
        sure = max((i for i, peak in enumerate(line) if (1 + off) * peak <= limit), default=-1)
        pick = partial(picked, points, peaks, limit, monkeypatch)
        try:
            index, _ = pick()
        except PeakTooLargeError:
            assert sure < 0, seed
            continue
        assert index >= sure, seed


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_picked_is_close_to_the_fastest_that_fits(
    shape: Callable[[random.Random], Callable[[float], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(100):
        generator = random.Random(seed)
        points, peak_of = frontier(generator), shape(generator)
        peaks = [int(peak_of(point.memory_bytes)) for point in points]
        limit = generator.choice(peaks)
        index, _ = picked(points, peaks, limit, monkeypatch, close=0.01)
        fastest = max(i for i, peak in enumerate(peaks) if peak <= limit)
        assert points[index].time_s <= 1.01 * points[fastest].time_s, seed


@pytest.mark.parametrize(("part", "ratio"), [(0.49, 0.9), (0.9, 1.3)])
def test_where_the_least_is_far_above_one_point_is_simulated(
    part: float, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sum, or its sum a little and its peak by more."""
    points = frontier(random.Random(2))
    peaks = [int(ratio * point.memory_bytes) for point in points]
    seen: list[int] = []

    def simulated(point: Any, _: object) -> SimulatedPoint:
        seen.append(point.index)
        return SimulatedPoint(point, peaks[point.index])

    monkeypatch.setattr(refine, "_simulated", simulated)
    with pytest.raises(PeakTooLargeError, match=f"the least is {format_bytes(peaks[0])}"):
        fastest_within(points, part * points[0].memory_bytes)  # type: ignore[arg-type]
    assert seen == [0]
