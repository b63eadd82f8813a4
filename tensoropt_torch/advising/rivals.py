"""What people would run without a search: strategies that one names, on the same costs.

Each is the space restricted to the configs that play a role on every mesh axis
(``csrc/baselines/axis_roles.h``), at its best: which gathered parameters are kept for backward,
which operators run again where it recomputes, and how many micro-batches it needs are searched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.advising.spaces import Space, Spaces, Strategies, picks_alone
from tensoropt_torch.plan import Guarantee, Plan

# So large an error is allowed that a search stops when it knows the least memory.
_ONLY_THE_ENDS = 1e9


@dataclass(frozen=True)
class Rival:
    """A strategy by the name that its users know: the role of the devices of a machine, and of
    machines."""

    name: str
    inside: str
    across: str
    recompute: bool = False

    def roles(self, space: Space) -> list[tuple[str, int]]:
        """By mesh axis: its kind and no name of a dim."""
        innermost = max((level for _, level in space.settings.mesh_axes), default=0)
        return [
            (self.inside if level == innermost else self.across, -1)
            for _, level in space.settings.mesh_axes
        ]


RIVALS: Sequence[Rival] = (
    Rival("DDP", "data", "data"),
    Rival("FSDP2", "shard", "shard"),
    Rival("FSDP2, recomputing", "shard", "shard", recompute=True),
    Rival("TP in a machine, FSDP2 across, recomputing", "tensor", "shard", recompute=True),
)


class RivalStrategies:
    """Those of one rival in the spaces of a task, each searched when it is asked for."""

    def __init__(self, rival: Rival, spaces: Spaces) -> None:
        self._rival = rival
        self.spaces = spaces
        self._search = spaces.task.search
        self._least: dict[int, float] = {}

    def least_memory(self, count: int) -> float:
        """Bytes per device in so many micro-batches; infinity: it has no strategy."""
        if count not in self._least:
            ends = replace(self._search, epsilon=_ONLY_THE_ENDS).options()
            points = self._played(count, ends).points
            self._least[count] = points[0][0] if points else math.inf
        return self._least[count]

    def likely_first(self, limit: float) -> int | None:
        """As of ``Spaces``; nothing is known of theirs."""
        return None

    def strategies(self, counts: Sequence[int], limit: float, sure: float) -> Strategies:
        """Within the limit, the best of all these numbers of micro-batches; the fastest alone if
        all of at most ``sure`` bytes will do, and the limit is no more."""
        only_picks = picks_alone(limit, sure)
        options = self._search.options(pick_limits=[limit], only_picks=only_picks)
        found = {count: self._played(count, options) for count in counts}
        places = sorted(
            (memory, time_s, count, number)
            for count, result in found.items()
            for number, (memory, time_s) in enumerate(result.points)
            if memory <= limit
        )
        kept: list[tuple[float, float, int, int]] = []
        for place in places:
            if not kept or place[1] < kept[-1][1]:
                kept.append(place)
        points = tuple((memory, time_s) for memory, time_s, *_ in kept)

        def plan(index: int) -> Plan:
            _, _, count, number = kept[index]
            space, result = self.spaces.at(count), found[count]
            guarantee = Guarantee(bool(result.exact), self._search.epsilon)
            strategy = result.unroll(number)
            args = space.core, space.settings, space.captured
            return Plan.of(*args, strategy, points, guarantee)

        return Strategies(points, plan)

    def _played(self, count: int, options: _C.SearchOptions) -> _C.BaselineResult:
        space = self.spaces.at(count)
        return space.core.play(self._rival.roles(space), options)
