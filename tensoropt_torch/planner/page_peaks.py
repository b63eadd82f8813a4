"""Peaks of the points of a frontier: simulated ones, and of the others what these let expect.

What a device has at its peak and not at the end of forward hardly changes along a frontier. So a
peak lies on the line between those of its neighbours that are known, and beyond the last of them
above its sum by as much as there.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensoropt_torch.units import format_bytes


@dataclass(frozen=True)
class PointPeak:
    """Bytes of one device, and whether they were simulated."""

    num_bytes: float
    simulated: bool

    def __str__(self) -> str:
        return f"{'' if self.simulated else 'about '}{format_bytes(self.num_bytes)}"


@dataclass(frozen=True)
class Peaks:
    """Of (memory, time) ``points`` by ascending memory, of which some are ``known`` by number."""

    points: Sequence[tuple[float, float]]
    known: Mapping[int, int]

    def of(self, index: int) -> PointPeak | None:
        """That of a point; None: no peak is known."""
        if not self.known:
            return None
        if index in self.known:
            return PointPeak(self.known[index], True)
        return PointPeak(self._at(self.points[index][0]), False)

    def kept_at(self, peak_bytes: float) -> float:
        """What a plan keeps whose peak has so many bytes; the same where no peak is known."""
        if not self.known:
            return peak_bytes
        for (kept, peak), (other, higher) in itertools.pairwise(self._knots):
            if peak <= peak_bytes < higher:
                return kept + (peak_bytes - peak) * (other - kept) / (higher - peak)
        kept, peak = self._knots[0 if peak_bytes < self._knots[0][1] else -1]
        return peak_bytes - (peak - kept)

    @cached_property
    def _knots(self) -> list[tuple[float, float]]:
        """(memory, peak) of what is known, by ascending memory."""
        return [(self.points[index][0], float(self.known[index])) for index in sorted(self.known)]

    def _at(self, kept: float) -> float:
        at = bisect_left(self._knots, (kept, 0.0))
        if at in (0, len(self._knots)):
            memory, peak = self._knots[0 if at == 0 else -1]
            return kept + peak - memory
        (memory, peak), (other, higher) = self._knots[at - 1 : at + 1]
        return peak + (kept - memory) * (higher - peak) / (other - memory)
