"""What frontiers are made of: points that were found, and the plans that they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan import Guarantee, Plan, Settings, StagedPlan

Points = Sequence[tuple[float, float]]


class FrontierPart(Protocol):
    """Strategies that one search has found, with or without stages: a part of a frontier."""

    @property
    def points(self) -> Points:
        """(bytes per device, seconds), none beaten, by ascending bytes."""

    @property
    def guarantee(self) -> Guarantee:
        """What holds for it."""

    @property
    def stats(self) -> Mapping[str, float]:
        """Counts and seconds of the search."""

    @property
    def least_memory_bytes(self) -> float:
        """Of any strategy, limit or not; infinite if there is none."""

    def shape(self, number: int) -> tuple[int, int]:
        """In how many stages and micro-batches a point runs."""

    def plan(self, number: int, frontier: Points, guarantee: Guarantee) -> Plan | StagedPlan:
        """The plan of a point, of that frontier."""


@dataclass(frozen=True)
class Searched:
    """What was found in one strategy space: of the model, or of a number of micro-batches."""

    result: _C.SearchResult
    space: _C.SearchSpace
    settings: Settings
    captured: CapturedModel

    @property
    def points(self) -> Points:
        """See ``FrontierPart``."""
        return self.result.points

    @property
    def guarantee(self) -> Guarantee:
        """See ``FrontierPart``."""
        result = self.result
        return Guarantee(
            bool(result.exact),
            float(result.epsilon),
            tuple(result.heuristics),
            bool(self.space.complete),
        )

    @property
    def stats(self) -> Mapping[str, float]:
        """See ``csrc/search/frontier_tracking.h``."""
        return self.result.stats

    @property
    def least_memory_bytes(self) -> float:
        """See ``FrontierPart``."""
        return float(self.result.min_memory)

    def shape(self, number: int) -> tuple[int, int]:
        """See ``FrontierPart``."""
        return 1, self.settings.micro_batches

    def plan(self, number: int, frontier: Points, guarantee: Guarantee) -> Plan:
        """See ``FrontierPart``."""
        strategy = self.result.unroll(number)
        return Plan.of(
            self.space, self.settings, self.captured, strategy, tuple(frontier), guarantee
        )


def without_stages(plan: Plan | StagedPlan, what: str) -> Plan:
    """A plan for ``what``, which no plan in stages can have.

    Raises:
        TensorOptError: it is in stages.
    """
    if isinstance(plan, StagedPlan):
        raise TensorOptError(
            f"{what} is not for plans in stages, such as this one in {plan.stages}; plan with "
            "max_stages=1"
        )
    return plan


def weakest(guarantees: Sequence[Guarantee]) -> Guarantee:
    """What holds for all of them."""
    heuristics = {weight: None for found in guarantees for weight in found.heuristics}
    return Guarantee(
        all(found.exact for found in guarantees),
        max(found.epsilon for found in guarantees),
        tuple(heuristics),
        all(found.complete for found in guarantees),
    )
