"""The fastest point whose peak fits, with few simulations, beside looking at all."""

from __future__ import annotations

import random

import pytest

from tensoropt_torch.advising.picking import MOST_PROBES, Pick, TooLarge, fastest_within

POINTS = [(float(10 * i), 100.0 - i) for i in range(1, 41)]


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.3, 3.0])
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.26])
def test_it_fits_and_is_close_to_the_fastest_that_does(factor: float, ratio: float) -> None:
    seen: list[int] = []

    def peak_of(index: int) -> int:
        seen.append(index)
        return round(factor * POINTS[index][0])

    found = fastest_within(POINTS, peak_of, 200, ratio)
    assert isinstance(found, Pick) and found.peak_bytes == peak_of(found.index)
    assert found.peak_bytes <= 200
    best = max(i for i, (memory, _) in enumerate(POINTS) if factor * memory <= 200)
    assert POINTS[found.index][1] <= 1.02 * POINTS[best][1]
    assert len(seen) <= MOST_PROBES + 2


def test_what_is_picked_fits_whatever_peaks_are() -> None:
    for seed in range(50):
        generator = random.Random(seed)
        peaks = [generator.randint(1, 400) for _ in POINTS]
        found = fastest_within(POINTS, peaks.__getitem__, 200)
        if isinstance(found, Pick):
            assert found.peak_bytes == peaks[found.index] <= 200, seed
        else:
            assert found.least_bytes > 200 and peaks[0] > 200, seed


def test_nothing_fits() -> None:
    found = fastest_within(POINTS, lambda index: 1000 + index, 500)
    assert found == TooLarge(1000)


def test_far_below_the_limit_nothing_is_simulated() -> None:
    def fails(index: int) -> int:
        raise AssertionError(index)

    assert fastest_within(POINTS, fails, 1200) == Pick(39, None)
