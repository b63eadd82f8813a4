"""How steps differ from what is predicted of them.

Operators that are measured one by one find their data in the cache, and collectives
meet ranks that do nothing else. In a step both take longer: computing by a factor that is
much the same for all strategies of a model on a machine, and each collective by the time
that ranks wait for each other as well, which does not depend on its size.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import torch

# The mean error that must be gained for seconds of collectives which are all of the network
# time, half as much where they are half of it.
GAIN = 0.005

# Fewer strategies would be fitted by a factor and seconds without a remainder, noise included.
LEAST_FOR_SECONDS = 3

# The error of one step that must be gained for a factor that is twice what is expected of it, or
# for seconds of collectives which are all of the time of steps.
UNEXPECTED = 0.1

ROUNDING = 1e-9  # of what is 0 where three terms are


class TimedStrategy(Protocol):
    """Predicted and measured times of a step, in s, and how many collectives it has."""

    @property
    def step_s(self) -> float: ...
    @property
    def measured_step_s(self) -> float: ...
    @property
    def network_s(self) -> float: ...
    @property
    def measured_network_s(self) -> float: ...
    @property
    def collectives(self) -> float: ...


@dataclass(frozen=True)
class TimedPlan:
    """A ``TimedStrategy`` of which nothing else is known."""

    step_s: float
    measured_step_s: float
    network_s: float
    measured_network_s: float
    collectives: float


@dataclass(frozen=True)
class Scales:
    """What computing and the network take in steps, as multiples of what is predicted, and
    what each collective takes in addition, in s."""

    compute: float = 1.0
    network: float = 1.0
    collective_s: float = 0.0

    def times(self, row: TimedStrategy) -> tuple[float, float]:
        """Predicted by these: of a step, and of the network."""
        network_s = self.network_time(row)
        return network_s + self.compute * _compute_s(row), network_s

    def network_time(self, row: TimedStrategy) -> float:
        """Predicted by these, in s."""
        return self.network * row.network_s + self.collective_s * row.collectives


def scales_of(strategies: Iterable[TimedStrategy]) -> Scales:
    """What fits computing and the network of many strategies best, each by itself: of computing
    the median ratio, of the network the least sum of relative errors, which a few disturbed runs
    do not move. 1 and 0 s where nothing was measured.

    Where strategies have about as many collectives for their network time, nearly any factor
    goes with some seconds: those that gain next to nothing (``GAIN``) are not taken. They may be
    below zero: between others of a step a small collective finds the threads that move data awake.
    """
    rows = list(strategies)
    compute = _compute_ratio(rows)
    rows = [row for row in rows if min(row.network_s, row.measured_network_s) > 0]
    median = _median_ratio((row.network_s, row.measured_network_s) for row in rows)
    pairs = _through_two(rows) if len(rows) >= LEAST_FOR_SECONDS else ()
    likely = (fit for fit in pairs if 0.5 < fit[0] / median < 2)
    candidates = [Scales(compute, *fit) for fit in ((median, 0.0), *likely)]
    return min(candidates, key=lambda scales: _network_error(rows, scales))


def scales_of_steps(strategies: Iterable[TimedStrategy], with_seconds: bool = True) -> Scales:
    """What fits the steps of a few strategies best, at least one. Of these alone little is known,
    so what is expected counts as well (``UNEXPECTED``): that computing takes as many times longer
    as was measured of it, that the network takes what is predicted, and collectives nothing
    more; and where ranks wait for each other, it is not seen well what is network and what
    computing. The least sum of relative errors of steps and of what is not expected. Without
    ``with_seconds`` there are none.

    The optimum of these linear terms is where three of them are 0, and all such places are looked
    at.
    """
    rows = list(strategies)
    # Columns are of computing, of the network and of seconds, as multiples of one that would make
    # collectives take all the time of steps.
    share = statistics.mean(row.collectives / row.measured_step_s for row in rows)
    second = 1 / share if with_seconds and share > 0 else 0.0
    planes = []
    for row in rows:
        parts = _compute_s(row), row.network_s, second * row.collectives, row.measured_step_s
        planes.append([part / row.measured_step_s for part in parts])
    planes.append([UNEXPECTED / _compute_ratio(rows), 0.0, 0.0, UNEXPECTED])
    planes.append([0.0, UNEXPECTED, 0.0, UNEXPECTED])
    planes.append([0.0, 0.0, UNEXPECTED, 0.0])
    terms = torch.tensor(planes, dtype=torch.float64)
    crossing = terms[torch.combinations(torch.arange(len(planes)), 3)]
    found, info = torch.linalg.solve_ex(crossing[:, :, :3], crossing[:, :, 3])
    found = found[(info == 0) & found.isfinite().all(-1)]
    compute, network, seconds = found.unbind(-1)
    found = found[(compute > 0) & (network > 0) & (seconds > -ROUNDING)]
    errors = (found @ terms[:, :3].T - terms[:, 3]).abs().sum(-1)
    compute_x, network_x, share_of_steps = found[errors.argmin()].tolist()
    return Scales(compute_x, network_x, second * max(0.0, share_of_steps))


def one_scale_of_steps(strategies: Iterable[TimedStrategy]) -> Scales:
    """By which all that steps of some strategies take is multiplied: what most often fits."""
    factor = _median_ratio((row.step_s, row.measured_step_s) for row in strategies)
    return Scales(factor, factor)


def _through_two(rows: Sequence[TimedStrategy]) -> Iterator[tuple[float, float]]:
    """Factors and seconds that are right for two rows; the best fit is one of these."""
    for a, b in combinations(rows, 2):
        determinant = a.network_s * b.collectives - b.network_s * a.collectives
        if determinant == 0:
            continue
        across = a.measured_network_s * b.collectives - b.measured_network_s * a.collectives
        down = a.network_s * b.measured_network_s - b.network_s * a.measured_network_s
        yield across / determinant, down / determinant


def _network_error(rows: Sequence[TimedStrategy], scales: Scales) -> float:
    return sum(
        abs(scales.network_time(row) / row.measured_network_s - 1)
        + GAIN * abs(scales.collective_s) * row.collectives / row.measured_network_s
        for row in rows
    )


def _compute_s(row: TimedStrategy) -> float:
    return row.step_s - row.network_s


def _compute_ratio(rows: Iterable[TimedStrategy]) -> float:
    return _median_ratio(
        (_compute_s(row), row.measured_step_s - row.measured_network_s) for row in rows
    )


def _median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    ratios = [measured / predicted for predicted, measured in pairs if min(predicted, measured) > 0]
    return statistics.median(ratios) if ratios else 1.0
