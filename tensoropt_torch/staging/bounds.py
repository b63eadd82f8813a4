"""What stages cost at least, before any of them is searched.

The strategies of all stages are together one of the whole graph on the devices of a stage, and
that of each is one of a part of it. So tables of the whole graph, made once, say what pipelines
and their stages cost at least.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from tensoropt_torch import _C
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.searched import Points
from tensoropt_torch.program.stage_schedules import ScheduleName
from tensoropt_torch.stages.intervals import Interval
from tensoropt_torch.staging.tables import InFlightSpace

WEIGHTINGS = 9  # of memory and time, under which the least of a part is found


class StageBounds:
    """Of pipelines of one number of stages.

    Args:
        tables: of the whole graph, on the devices of a stage.
        places: of its nodes, see ``Intervals.places``.
        offered: the intervals that each stage may be.
        flight: how many micro-batches are in flight in a stage.
    """

    def __init__(
        self,
        tables: InFlightSpace,
        search: SearchSettings,
        places: Sequence[int],
        offered: Sequence[tuple[int, Interval]],
        flight: Callable[[int], int],
    ) -> None:
        self._search = search
        self._places = places
        self._offered = offered
        self._flight = flight
        flights = {1, *(flight(stage) for stage, _ in offered)}
        self._space = tables.with_tables(flights, search.num_threads)

    def beats(self, known: Points, memory_limit: float, pick_limits: Sequence[float] = ()) -> bool:
        """Whether all stages together may improve on what is known, in memory and time of the
        whole graph on the devices of a stage."""
        options = self._search.options(memory_limit, pick_limits, known)
        return bool(self._space.may_improve_in_flights(self._least_flights(), options))

    def _least_flights(self) -> list[int]:
        """By node, how many micro-batches are in flight at least where it may be."""
        last = [0] * (max(self._places, default=0) + 1)
        for stage, interval in self._offered:
            for place in range(interval.first, min(interval.last, len(last))):
                last[place] = max(last[place], stage)
        return [self._flight(last[place]) if place >= 0 else 1 for place in self._places]

    def least(self, memory_limit: float) -> Mapping[Hashable, _C.SupportingLines]:
        """What each of the intervals that are offered costs at least, by number in flight and
        what is alike."""
        parts: dict[Hashable, tuple[int, int, int]] = {}
        for stage, interval in self._offered:
            flight = self._flight(stage)
            parts.setdefault((flight, interval.alike), (interval.first, interval.last, flight))
        found = self._space.least_of_parts(
            self._places,
            list(parts.values()),
            weightings=WEIGHTINGS,
            epsilon=self._search.epsilon,
            memory_limit=memory_limit,
            num_threads=self._search.num_threads,
        )
        return dict(zip(parts, found, strict=True))


def least_step(schedule: ScheduleName, stages: int, micro_batches: int, chunks: int = 1) -> float:
    """The least that a step in closed form takes, in times of an average stage for one
    micro-batch, if forwards take a third (``tests/stages/test_stage_limits.py``); by the
    interleaved schedule what one of equal parts takes.

    With more micro-batches than stages equal stages wait least: let s of S be the stage that a
    step is measured at, then with times t of stages it takes at least the sum of t_j before s,
    (M - (S - 1 - s)) t_s and 2 t_j after s. Of these S sums an average in which all t have the
    same factor has none but positive weights, and that factor is (M + S - 1) / S. With fewer
    micro-batches stages that differ may hide a part of the waits. By GPipe it takes the time of all
    stages and M - 1 times that of the slowest.
    """
    if schedule == "interleaved":
        return micro_batches + (stages - 1) / chunks
    if micro_batches > stages or schedule == "gpipe":
        return micro_batches + stages - 1
    fewer, more = sorted((stages - 1, micro_batches - 1))
    return 1 + more + 2 / 3 * fewer


def is_matched(point: tuple[float, float], others: Points) -> bool:
    """Whether one of the others has no more memory and takes no more time."""
    return any(point[0] >= memory and point[1] >= time for memory, time in others)
