"""What one model can do on one number of devices: the fastest that fits, and what others would
do there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensoropt_torch import _C
from tensoropt_torch.advising.parts import Parts
from tensoropt_torch.advising.picking import SURE_SHARE, Pick, fastest_within
from tensoropt_torch.advising.rivals import RIVALS, RivalStrategies
from tensoropt_torch.advising.spaces import LeastMemory, Spaces, Strategies
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate.refine import peak_of, step_of
from tensoropt_torch.tasks import by_memory
from tensoropt_torch.telling.because import Costs, costs_of, why_faster
from tensoropt_torch.telling.chosen import Chosen, chosen_of


@dataclass(frozen=True)
class Fitting:
    """The fastest strategy that fits, with its simulated peak if it needed one, and the fewest
    micro-batches that fit."""

    plan: Plan
    space: _C.SearchSpace
    peak_bytes: int | None
    chosen: Chosen
    first: int

    @property
    def memory_bytes(self) -> float:
        """The peak, or the sum of what is kept."""
        return self.plan.memory_bytes if self.peak_bytes is None else self.peak_bytes

    @cached_property
    def costs(self) -> Costs:
        """What its step consists of."""
        return costs_of(self.plan, self.space)


@dataclass(frozen=True)
class Missing:
    """Nothing fits; the least bytes of a device that were found."""

    least_bytes: float


class Known:
    """What cells on fewer devices of the same machine tell of one on more: the ratio of peaks and
    sums of the last pick, and how many micro-batches are enough (0: nothing is known)."""

    def __init__(self) -> None:
        self.ratio = 1.0
        self.enough = 0


class Cell:
    """A task on a number of devices.

    Args:
        task: with the cluster.
        parts: the model in micro-batches.
        limit: bytes per device.
        known: of cells before, and of this one for the next.
        least: the least memory on meshes, of cells before and of this one.
    """

    def __init__(
        self,
        task: PlanningTask,
        parts: Parts,
        num_devices: int,
        limit: float,
        known: Known,
        least: LeastMemory,
    ) -> None:
        self._task = task
        self._limit = limit
        self._known = known
        self._least = least
        self._spaces = {task.recompute: Spaces(task, parts, num_devices, least)}
        self._parts = parts
        self._num_devices = num_devices

    def ours(self, by: Predictor | None) -> Fitting | Missing:
        """The fastest of the whole space whose sum or simulated peak is within the limit."""
        spaces = self._of(self._task.recompute)
        found = self._fastest(spaces, spaces.least_memory, spaces.strategies, by, self._known)
        if isinstance(found, Fitting):
            self._known.enough = found.first
        return found

    def rivals(self, by: Predictor | None) -> dict[str, Fitting | Missing]:
        """What others have that fits, by their names."""
        found: dict[str, Fitting | Missing] = {}
        for rival in RIVALS:
            spaces = self._of(rival.recompute)
            own = RivalStrategies(rival, spaces)
            known = Known()
            found[rival.name] = self._fastest(spaces, own.least_memory, own.strategies, by, known)
        return found

    def _of(self, recompute: bool) -> Spaces:
        if recompute not in self._spaces:
            task = replace(self._task, recompute=recompute)
            self._spaces[recompute] = Spaces(task, self._parts, self._num_devices, self._least)
        return self._spaces[recompute]

    def _fastest(
        self,
        spaces: Spaces,
        least_memory: Callable[[int], float],
        strategies: Callable[[Sequence[int], float, float], Strategies],
        by: Predictor | None,
        known: Known,
    ) -> Fitting | Missing:
        least = math.inf
        # Of so many bytes a strategy fits whatever is simulated.
        sure = by_memory(by, lambda: SURE_SHARE * self._limit, lambda: self._limit)
        for counts in spaces.windows(self._limit, least_memory, known.enough):
            found = strategies(counts, self._limit, sure)
            if found.points:
                picked = self._picked(found, counts[0], by, known)
                if isinstance(picked, Fitting):
                    return picked
                least = min(least, picked.least_bytes)
        if math.isinf(least):
            least = least_memory(spaces.counts[-1])
        return Missing(least)

    def _picked(
        self, found: Strategies, first: int, by: Predictor | None, known: Known
    ) -> Fitting | Missing:
        picked = by_memory(
            by,
            lambda: fastest_within(
                found.points, lambda i: self._peak(found.plan(i)), self._limit, known.ratio
            ),
            lambda: Pick(len(found.points) - 1, None),
        )
        if not isinstance(picked, Pick):
            return Missing(picked.least_bytes)
        plan, space = found.plan(picked.index), found.space(picked.index)
        if picked.peak_bytes is not None:
            known.ratio = picked.peak_bytes / plan.memory_bytes
        return Fitting(plan, space, picked.peak_bytes, chosen_of(plan, space), first)

    def _peak(self, plan: Plan) -> int:
        assert plan.captured is not None, "plans of a search carry their model"
        return peak_of(plan, plan.captured, step_of(self._task))


def because(ours: Fitting, theirs: Fitting, name: str) -> str:
    """Why ours is faster than theirs, or that it is not."""
    return why_faster(ours.costs, theirs.costs, name)
