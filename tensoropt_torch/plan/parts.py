"""What plans are made of: for each part of the model the strategy on the part's mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tensoropt_torch import _C
from tensoropt_torch.config.records import Count, Must, NotNegative, Record
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.space.choices import Choices


@dataclass(frozen=True)
class PlanPart(Record):
    """One strategy of one graph, which is all of a model.

    Attributes:
        fingerprint: of the graph.
        memory_bytes: predicted memory of a device (states and what is kept for backward;
            temporaries are not counted).
        time_s: predicted time of a training step.
        choices: the strategy.
    """

    fingerprint: str
    memory_bytes: NotNegative
    time_s: NotNegative
    choices: Choices

    @staticmethod
    def of(space: _C.SearchSpace, captured: CapturedModel, strategy: _C.Strategy) -> PlanPart:
        """A strategy that was found in ``space`` for the graph."""
        choices = Choices.of(space, strategy)
        time_s = max(strategy.time, space.host_time(strategy))
        return PlanPart(captured.fingerprint, strategy.memory, time_s, choices)


# A list, so that files stay as they are when a model is cut into stages.
Parts = Annotated[
    tuple[PlanPart, ...],
    Field(min_length=1, max_length=1),
    Must("a list of one part, all that this version of tensoropt_torch runs"),
]


def only_part(parts: Sequence[PlanPart]) -> PlanPart:
    """The part that is all of the model."""
    (part,) = parts
    return part


@dataclass(frozen=True)
class VariantStrategy(Record):
    """The strategy of another graph of a plan's model (another mode, other shapes), with
    parameters stored as the plan says. ``gathered``: every rank gets the whole batch, though
    the plan is for a share on each; ``micro_batches``: of a step."""

    parts: Parts
    gathered: bool = False
    micro_batches: Count = 1

    @property
    def key(self) -> tuple[str, bool, int]:
        """What it is for."""
        return only_part(self.parts).fingerprint, self.gathered, self.micro_batches

    @staticmethod
    def of(
        space: _C.SearchSpace,
        captured: CapturedModel,
        strategy: _C.Strategy,
        gathered: bool = False,
    ) -> VariantStrategy:
        """A strategy that was found in ``space`` for the graph."""
        part = PlanPart.of(space, captured, strategy)
        return VariantStrategy((part,), gathered, captured.micro_batches)
