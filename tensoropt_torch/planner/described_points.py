"""Points of a frontier that a page looks into, and what plans do in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensoropt_torch import _C
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.points import named_points, pick_index, thinned_indices
from tensoropt_torch.planner.stage_timeline import StageLane, lanes_of
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.telling.description import model_at_hand
from tensoropt_torch.telling.details import PlanDetails, details_of, outlines_of
from tensoropt_torch.telling.stages import StagedDetails, StageRow, details_of_stages
from tensoropt_torch.units import format_bytes, format_step

# How many points are looked into, besides those that have names.
DESCRIBED = 6


@dataclass(frozen=True)
class PointView:
    """A point that is looked into; ``names`` such as ``knee``."""

    index: int
    names: str
    memory_bytes: float
    time_s: float
    details: PlanDetails
    lanes: Sequence[StageLane] = ()  # of stages

    @property
    def rows(self) -> Sequence[StageRow]:
        """Of stages, if it is in some."""
        return self.details.rows if isinstance(self.details, StagedDetails) else ()

    @property
    def title(self) -> str:
        """Names, costs and number."""
        names = f"{self.names[0].upper()}{self.names[1:]}: " if self.names else ""
        kept, step = format_bytes(self.memory_bytes), format_step(self.time_s)
        return f"{names}keeps {kept} per device, {step} a step (point {self.index})"


class PlanWords:
    """What plans of one model do. Each of their strategy spaces, which differ by the number of
    micro-batches for example, is made once."""

    def __init__(self) -> None:
        self._spaces: list[tuple[Settings, _C.SearchSpace]] = []

    def details(self, plan: Plan | StagedPlan) -> PlanDetails:
        """All figures of one point."""
        if isinstance(plan, StagedPlan):
            return details_of_stages(plan)
        return details_of(plan, self._space(plan))

    def outlines(self, plans: Sequence[Plan]) -> list[str]:
        """A sentence or two of each."""
        groups: dict[_C.SearchSpace, list[int]] = defaultdict(list)
        for index, plan in enumerate(plans):
            groups[self._space(plan)].append(index)
        found = [""] * len(plans)
        for space, indices in groups.items():
            outlines = outlines_of([plans[index] for index in indices], space)
            for index, outline in zip(indices, outlines, strict=True):
                found[index] = outline
        return found

    def _space(self, plan: Plan) -> _C.SearchSpace:
        for settings, space in self._spaces:
            if settings == plan.settings:
                return space
        space = make_space(model_at_hand(plan), plan.settings)
        self._spaces.append((plan.settings, space))
        return space


def described_points(
    points: Sequence[tuple[float, float]],
    plan: Callable[[int], Plan | StagedPlan],
    limit: float,
    words: PlanWords,
) -> list[PointView]:
    """Ends, knee, the pick at the limit, and some between them."""
    names = named_points(points)
    picked = pick_index(points, limit)
    if picked is not None:
        names.setdefault(picked, []).append("pick")
    indices = sorted({*thinned_indices(len(points), DESCRIBED), *names})
    return [
        _view(index, names.get(index, ()), points[index], plan(index), words) for index in indices
    ]


def _view(
    index: int,
    names: Sequence[str],
    costs: tuple[float, float],
    plan: Plan | StagedPlan,
    words: PlanWords,
) -> PointView:
    lanes = lanes_of(plan) if isinstance(plan, StagedPlan) else ()
    return PointView(index, ", ".join(names), *costs, words.details(plan), lanes)
