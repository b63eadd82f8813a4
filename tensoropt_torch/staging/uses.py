"""What of the frontiers of stages may be of use beside strategies that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch.planner.searched import Points
from tensoropt_torch.stages.intervals import Interval
from tensoropt_torch.staging.bounds import is_matched


@dataclass(frozen=True)
class Use:
    """What of the frontier of a stage may be of use.

    Attributes:
        others: (bytes, seconds) from which on a strategy is of none.
        limit: bytes from which on no strategy is of use; 0: none at all is.
    """

    others: tuple[tuple[float, float], ...]
    limit: float

    @staticmethod
    def any() -> Use:
        """Of a stage beside which nothing is known."""
        return Use((), math.inf)

    @staticmethod
    def none() -> Use:
        """Of a stage that no pipeline of use has."""
        return Use((), 0.0)

    def divided(self, memory: float, time: float) -> Use:
        """With memories and times divided by these."""
        others = tuple((num_bytes / memory, seconds / time) for num_bytes, seconds in self.others)
        return Use(others, self.limit / memory)

    @staticmethod
    def of(least: Points, memories: Sequence[float], longest: Sequence[float], slack: float) -> Use:
        """Of a stage whose strategies are no better than ``least`` (``SupportingLines.steps``),
        and of use if they take less time than ``longest`` with at least so much memory; within a
        factor of that other pipelines stand for theirs."""
        others = [at for at in zip(memories, longest, strict=True) if math.isfinite(at[1])]
        useful = [
            number
            for number, (memory, time) in enumerate(least)
            if not is_matched((memory, time * slack), others)
        ]
        if not useful:
            return Use.none()
        after = useful[-1] + 1
        return Use(tuple(others), least[after][0] if after < len(least) else math.inf)


def in_pipelines(
    offered: Sequence[tuple[int, Interval]], uses: Sequence[Use], stages: int
) -> list[Use]:
    """None where a stage is in no pipeline all of whose stages are of use: others are matched."""
    useful = [at for at, use in zip(offered, uses, strict=True) if use.limit > 0]
    begins = [{0}, *(set[int]() for _ in range(stages))]
    for stage in range(stages):
        here = (one for at, one in useful if at == stage)
        begins[stage + 1] = {one.last for one in here if one.first in begins[stage]}
    ends = [*(set[int]() for _ in range(stages)), {max(one.last for _, one in offered)}]
    for stage in reversed(range(stages)):
        here = (one for at, one in useful if at == stage)
        ends[stage] = {one.first for one in here if one.last in ends[stage + 1]}
    return [
        use if one.first in begins[stage] and one.last in ends[stage + 1] else Use.none()
        for (stage, one), use in zip(offered, uses, strict=True)
    ]
