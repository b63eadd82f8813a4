"""What one model can do on one number of devices: the fastest that fits, and what others would
do there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tensoropt_torch.advising.least_memory import LeastMemory
from tensoropt_torch.advising.parts import Parts
from tensoropt_torch.advising.picking import SURE_SHARE, Pick, fastest_within
from tensoropt_torch.advising.rivals import RIVALS, RivalStrategies
from tensoropt_torch.advising.spaces import Spaces, Strategies
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate.refine import peak_of, step_of
from tensoropt_torch.tasks import by_memory
from tensoropt_torch.telling.because import Costs, costs_of, why_faster
from tensoropt_torch.telling.chosen import Chosen, chosen_of


@dataclass(frozen=True)
class Fitting:
    """The fastest strategy that fits, with its simulated peak if it needed one."""

    plan: Plan
    peak_bytes: int | None
    chosen: Chosen

    @property
    def memory_bytes(self) -> float:
        """The peak, or the sum of what is kept."""
        return self.plan.memory_bytes if self.peak_bytes is None else self.peak_bytes


@dataclass(frozen=True)
class Missing:
    """Nothing fits; the least bytes of a device that were found."""

    least_bytes: float


@dataclass
class Known:
    """What cells on fewer devices of the same machine tell of one on more: the ratio of peak and
    sum of the last pick."""

    ratio: float = 1.0


@dataclass(frozen=True)
class Compared:
    """What another one has that fits, and why ours is faster than that, or that it is not."""

    found: Fitting | Missing
    because: str


class Cell:
    """A task on a number of devices. Keeps no strategy space, of which there are as many as cells.

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
        self._parts = parts
        self._num_devices = num_devices

    def ours(self, by: Predictor | None) -> Fitting | Missing:
        """The fastest of the whole space whose sum or simulated peak is within the limit."""
        spaces = self._spaces(self._task.recompute)
        return self._fastest(spaces, spaces, by, self._known)

    def rivals(self, ours: Fitting | Missing, by: Predictor | None) -> dict[str, Compared]:
        """What others have, by their names."""
        spaces = {recompute: self._spaces(recompute) for recompute in (False, True)}
        compared: dict[str, Compared] = {}
        costs: Costs | None = None
        for rival in RIVALS:
            own = RivalStrategies(rival, spaces[rival.recompute])
            found = self._fastest(own.spaces, own, by, Known())
            because = ""
            if isinstance(ours, Fitting) and isinstance(found, Fitting):
                costs = costs or _costs(spaces[self._task.recompute], ours)
                because = why_faster(costs, _costs(own.spaces, found), rival.name)
            compared[rival.name] = Compared(found, because)
        return compared

    def _spaces(self, recompute: bool) -> Spaces:
        task = replace(self._task, recompute=recompute)
        return Spaces(task, self._parts, self._num_devices, self._least)

    def _fastest(
        self,
        spaces: Spaces,
        candidates: Spaces | RivalStrategies,
        by: Predictor | None,
        known: Known,
    ) -> Fitting | Missing:
        least = math.inf
        # Of so many bytes a strategy fits whatever is simulated.
        sure = by_memory(by, lambda: SURE_SHARE * self._limit, lambda: self._limit)
        likely = candidates.likely_first(self._limit)
        for counts in spaces.windows(self._limit, candidates.least_memory, likely):
            found = candidates.strategies(counts, self._limit, sure)
            if found.points:
                picked = self._picked(spaces, found, by, known)
                if isinstance(picked, Fitting):
                    return picked
                least = min(least, picked.least_bytes)
        if math.isinf(least):
            least = candidates.least_memory(spaces.counts[-1])
        return Missing(least)

    def _picked(
        self, spaces: Spaces, found: Strategies, by: Predictor | None, known: Known
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
        plan = found.plan(picked.index)
        if picked.peak_bytes is not None:
            known.ratio = picked.peak_bytes / plan.memory_bytes
        return Fitting(plan, picked.peak_bytes, chosen_of(plan, spaces.of(plan)))

    def _peak(self, plan: Plan) -> int:
        assert plan.captured is not None, "plans of a search carry their model"
        return peak_of(plan, plan.captured, step_of(self._task))


def _costs(spaces: Spaces, found: Fitting) -> Costs:
    """What its step consists of."""
    return costs_of(found.plan, spaces.of(found.plan))
