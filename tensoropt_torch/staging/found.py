"""Strategies in stages as points of a model's frontier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Guarantee, StagedPlan
from tensoropt_torch.planner.searched import Points
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.staging.parts import plan_stages
from tensoropt_torch.staging.search import Pipelines, SearchedStages, pipelines


def find_in_stages(
    task: PlanningTask,
    num_devices: int,
    memory_limit: float,
    pick_limits: Sequence[float],
    known: Points,
) -> FoundInStages:
    """See ``StageSearch``. In as many micro-batches as the model is planned in."""
    numbers = tuple(captured.micro_batches for captured in task.in_micro_batches)
    wanted = SearchedStages(task.max_stages, numbers)
    found = pipelines(task, wanted, num_devices, memory_limit, pick_limits, known)
    if task.stage_pins and not found.points and math.isinf(memory_limit):
        raise TensorOptError(
            f"{task.stage_pins}: the model cannot be cut so in any number of micro-batches that is "
            "tried; pin fewer, or modules further apart that have parameters between them"
        )
    return FoundInStages(found, task, num_devices)


@dataclass(frozen=True)
class FoundInStages:
    """See ``planner.searched.FrontierPart``."""

    found: Pipelines
    task: PlanningTask
    num_devices: int
    planned: dict[int, StagedPlan] = field(default_factory=dict, compare=False, repr=False)

    @property
    def points(self) -> Points:
        """See ``FrontierPart``."""
        return [(one.memory_bytes, one.time_s) for one in self.found.points]

    @property
    def guarantee(self) -> Guarantee:
        """See ``FrontierPart``."""
        return self.found.guarantee

    @property
    def stats(self) -> Mapping[str, float]:
        """See ``FrontierPart``."""
        return {"pipelines": len(self.found.points)}

    @property
    def least_memory_bytes(self) -> float:
        """See ``FrontierPart``."""
        return min((memory for memory, _ in self.points), default=math.inf)

    def shape(self, number: int) -> tuple[int, int]:
        """See ``FrontierPart``."""
        one = self.found.points[number]
        return one.stages, one.micro_batches

    def plan(self, number: int, frontier: Points, guarantee: Guarantee) -> StagedPlan:
        """See ``FrontierPart``. Each part has the fastest strategy within its share of the point's
        ``cap_bytes``."""
        if number not in self.planned:
            one = self.found.points[number]
            self.planned[number] = plan_stages(
                self.task, one.options, self.num_devices, one.cap_bytes
            )
        return replace(
            self.planned[number],
            frontier=tuple(frontier),
            guarantee=guarantee,
            captured=self.task.captured,
        )
