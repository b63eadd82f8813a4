"""Spaces whose tables of costs several searches share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from tensoropt_torch import _C


@dataclass
class InFlightSpace:
    """A space, whose tables are built once for each number of micro-batches in flight."""

    space: _C.SearchSpace
    built: set[int] = field(default_factory=set)

    def with_tables(self, flights: Iterable[int], num_threads: int) -> _C.SearchSpace:
        """The space, with the tables of these numbers."""
        missing = set(flights) - self.built
        if missing:
            self.space.build_in_flight(sorted(missing), num_threads)
            self.built |= missing
        return self.space


class SpacesOfStages:
    """The spaces of one number of stages at a time, for pipelines by any schedule."""

    def __init__(self) -> None:
        self._stages = 0
        self._made: dict[Hashable, InFlightSpace] = {}

    def space(
        self, stages: int, key: Hashable, make: Callable[[], _C.SearchSpace]
    ) -> InFlightSpace:
        """That of this key; those of other numbers of stages are given up."""
        if stages != self._stages:
            self._stages, self._made = stages, {}
        if key not in self._made:
            self._made[key] = InFlightSpace(make())
        return self._made[key]
