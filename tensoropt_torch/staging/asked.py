"""Whether frontiers have strategies in stages."""

from __future__ import annotations

from dataclasses import replace

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.planner.task import PlanningTask


def with_stage_search(task: PlanningTask) -> PlanningTask:
    """The task, whose frontiers have strategies in stages, if these are asked for.

    Raises:
        TensorOptError: something else is asked for that plans in stages cannot do.
    """
    if task.max_stages == 1:
        return task
    from tensoropt_torch.stages import cut_points  # few jobs ask for stages
    from tensoropt_torch.staging.found import find_in_stages

    cut_points(task.captured, task.stage_pins.begins)
    asked = f"max_stages={task.max_stages}"
    refused = {
        "pin= or forbid= of splits": bool(task.constraints),
        "compiled=": task.compiled,
    }
    for name, is_given in refused.items():
        if is_given:
            raise TensorOptError(
                f"{asked} is not supported with {name}: stages take strategies as they are "
                "found, and are not compiled; leave one of them out"
            )
    if not task.in_micro_batches:
        raise TensorOptError(
            f"{asked} with max_micro_batches=1: stages run micro-batches in turn; give "
            "max_micro_batches=2 or more, such as twice the stages"
        )
    return replace(task, stage_search=find_in_stages)
