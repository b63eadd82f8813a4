"""Peaks of points that were not simulated."""

from __future__ import annotations

import pytest

from tensoropt_torch.planner.page_peaks import Peaks, PointPeak

POINTS = [(10.0, 5.0), (20.0, 4.0), (30.0, 3.0), (40.0, 2.0)]


def test_a_peak_lies_between_those_of_its_neighbours() -> None:
    peaks = Peaks(POINTS, {0: 12, 2: 42})
    assert peaks.of(0) == PointPeak(12.0, True)
    assert peaks.of(1) == PointPeak(27.0, False)


def test_beyond_what_is_known_it_is_above_its_sum_by_as_much() -> None:
    peaks = Peaks(POINTS, {1: 25, 2: 32})
    assert peaks.of(0) == PointPeak(15.0, False)
    assert peaks.of(3) == PointPeak(42.0, False)


def test_without_any_peak_nothing_is_said() -> None:
    assert Peaks(POINTS, {}).of(1) is None
    assert Peaks(POINTS, {}).kept_at(17.0) == 17.0


@pytest.mark.parametrize("kept", [5.0, 10.0, 15.0, 20.0, 33.0, 70.0])
def test_what_is_kept_at_a_peak_is_the_other_way_round(kept: float) -> None:
    points = [*POINTS, (kept, 1.0)]
    peaks = Peaks(points, {0: 12, 1: 26, 2: 37})
    found = peaks.of(4)
    assert found is not None
    assert peaks.kept_at(found.num_bytes) == pytest.approx(kept)
