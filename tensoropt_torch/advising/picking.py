"""The fastest strategy whose simulated peak is within a limit, with few simulations."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_PROBES = 6
# A pick may take so much longer than a faster one that may fit too: fewer are simulated.
CLOSE = 0.02
# Sums of at most this share of the limit need no simulation: a peak is not three times what is
# kept.
SURE_SHARE = 1 / 3


@dataclass(frozen=True)
class Pick:
    """The number of a point, and its simulated peak in bytes; None: it needed none."""

    index: int
    peak_bytes: int | None


@dataclass(frozen=True)
class TooLarge:
    """No point fits; the least peak that was found, in bytes."""

    least_bytes: float


def fastest_within(
    points: Sequence[tuple[float, float]],
    peak_of: Callable[[int], int],
    limit: float,
    ratio: float = 1.0,
) -> Pick | TooLarge:
    """Of (memory_bytes, time_s) points by ascending memory and descending time.

    Args:
        points: at least one.
        peak_of: simulates the point of a number.
        limit: bytes per device.
        ratio: of peaks and sums, as far as that is known; a good one saves simulations.
    """
    if points[-1][0] <= SURE_SHARE * limit:
        return Pick(len(points) - 1, None)
    sums = [memory for memory, _ in points]
    peaks: dict[int, int] = {}
    first, last = 0, len(points) - 1  # of those that may be faster than the best that fits
    best: int | None = None
    while first <= last and len(peaks) < MOST_PROBES:
        index = bisect_right(sums, limit / ratio) - 1
        index = min(max(index, first), last)
        peaks[index] = peak_of(index)
        if peaks[index] <= limit:
            best, first = index, index + 1
            if points[index][1] <= (1 + CLOSE) * points[last][1]:
                break
        else:
            last = index - 1
        ratio = max(peaks[index] / sums[index], 1e-9)
    if best is None and 0 not in peaks:
        peaks[0] = peak_of(0)
        best = 0 if peaks[0] <= limit else None
    return TooLarge(min(peaks.values())) if best is None else Pick(best, peaks[best])
