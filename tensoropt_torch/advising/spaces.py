"""Strategy spaces of a model on a number of devices, by the number of micro-batches.

Of all numbers of micro-batches the first that fits is searched and, unless that is as fast as
without a limit, the next one: fewer do not fit, more take longer, as each of them gathers
parameters and launches operators again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.advising.least_memory import LeastMemory, first_fitting
from tensoropt_torch.advising.parts import Parts
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.searched import Searched
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

SEARCHED_AT_ONCE = 2  # numbers of micro-batches


def picks_alone(limit: float, sure: float) -> bool:
    """Whether nothing but the fastest strategy within ``limit`` is needed, since all of at most
    ``sure`` bytes will do. Without a limit there is none to pick at."""
    return sure >= limit and math.isfinite(limit)


@dataclass(frozen=True)
class Space:
    """The strategy space of one number of micro-batches."""

    core: _C.SearchSpace
    settings: Settings
    captured: CapturedModel


@dataclass(frozen=True)
class Strategies:
    """Some that are looked at together: (memory_bytes, time_s) points by ascending memory and
    descending time, with their plans."""

    points: Sequence[tuple[float, float]]
    plan: Callable[[int], Plan]


class Spaces:
    """Those of one task on so many devices, each made when it is asked for.

    Args:
        task: with the cluster.
        parts: the model in micro-batches.
        num_devices: all together.
        least: what is known of the model on meshes of any machines; more of it is added.
    """

    def __init__(
        self, task: PlanningTask, parts: Parts, num_devices: int, least: LeastMemory
    ) -> None:
        self.task = task
        self.num_devices = num_devices
        self._parts = parts
        self._made: dict[int, Space] = {}
        self._least = least
        self._mesh_axes = tuple(task.settings(num_devices).mesh_axes)

    @property
    def counts(self) -> Sequence[int]:
        """Numbers of micro-batches, ascending, of which every device gets rows."""
        if self.task.inputs == "replicated":
            return self._parts.counts
        shares = self._parts.rows // self.num_devices
        return [count for count in self._parts.counts if count == 1 or shares % count == 0]

    def at(self, count: int) -> Space:
        """That of so many micro-batches."""
        if count not in self._made:
            captured = self._parts.at(count)
            task = replace(self.task, captured=captured, in_micro_batches=())
            settings = task.settings(self.num_devices)
            self._made[count] = Space(make_space(captured, settings), settings, captured)
        return self._made[count]

    def of(self, plan: Plan) -> _C.SearchSpace:
        """That of a plan of theirs."""
        return self.at(plan.settings.micro_batches).core

    def least_memory(self, count: int) -> float:
        """The least bytes per device of any strategy in so many micro-batches."""
        options = self.task.search.options()
        return self._least.of(
            count,
            self.task.recompute,
            self._mesh_axes,
            lambda: self.at(count).core.least_memory(options),
        )

    def least_bound(self, count: int) -> float:
        """What any strategy in so many micro-batches needs at least, bytes per device, as far as is
        known."""
        return self._least.bound(count, self.task.recompute, self._mesh_axes)

    def likely_first(self, limit: float) -> int | None:
        """The place of the number of micro-batches that is probably the first that fits, if
        anything is known."""
        recompute = self.task.recompute
        return self._least.likely_first(self.counts, recompute, self._mesh_axes, limit)

    def windows(
        self, limit: float, least_memory: Callable[[int], float], likely: int | None
    ) -> Iterator[Sequence[int]]:
        """Numbers of micro-batches from the first on that fits ``limit`` by ``least_memory``, some
        at once, as long as the caller asks for more: more of them need no more memory. The one at
        the place ``likely`` is looked at first."""

        def fits(count: int) -> bool:
            # A space is not made for what cannot fit.
            return self.least_bound(count) <= limit and least_memory(count) <= limit

        counts = self.counts
        start = first_fitting(counts, fits, likely)
        while start < len(counts):
            yield counts[start : start + SEARCHED_AT_ONCE]
            start += SEARCHED_AT_ONCE

    def strategies(self, counts: Sequence[int], limit: float, sure: float) -> Strategies:
        """Those of the cost frontier within the limit; the fastest alone if all of at most
        ``sure`` bytes will do, and the limit is no more. A number of micro-batches is the last
        where such a strategy is as fast as any without a limit: more of them take longer."""
        start = time.perf_counter()
        found: list[Searched] = []
        others: list[tuple[float, float]] = []
        only_picks = picks_alone(limit, sure)
        for count in counts:
            space = self.at(count)
            result = self.task.search.run(space.core, limit, others=others, only_picks=only_picks)
            others += result.points
            found.append(Searched(result, space.core, space.settings, space.captured))
            if self._has_fastest(result, sure):
                break
        seconds = time.perf_counter() - start
        frontier = Frontier(found, seconds, self.task.memory_fraction)
        return Strategies(
            [(point.memory_bytes, point.time_s) for point in frontier], frontier.whole_plan
        )

    def _has_fastest(self, result: _C.SearchResult, sure: float) -> bool:
        if not result.points:
            return False
        memory_bytes, time_s = result.points[-1]
        return memory_bytes <= sure and time_s <= (1 + self.task.search.epsilon) * result.min_time
