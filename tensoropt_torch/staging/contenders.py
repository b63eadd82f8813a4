"""Plans in stages that may be faster than the one that is predicted to be, for those who can run
some before they take one."""

from __future__ import annotations

from dataclasses import replace

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.planner.finalists import NEAR
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate import step_of, with_peaks
from tensoropt_torch.staging.grids import ByRoles
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import plan_stages

log = get_logger(__name__)

ROLES = ("data", "shard")  # of the axes of a stage (``csrc/baselines/axis_roles.h``)


def find_contenders(task: PlanningTask, plan: StagedPlan, limit: float) -> list[StagedPlan]:
    """The plan of a task; and, if they are within ``limit`` (bytes of a device, by peaks where the
    plan has some) and predicted to take not much longer, those with the same cuts whose stages are
    data parallel, with whole parameters and with sharded ones. No two are alike."""
    found = {plan.strategy_hash: plan}
    for role in ROLES if plan.devices_of_stage > 1 else ():
        try:
            other = _by_role(task, plan, role, limit)
        except TensorOptError as error:
            log.info("'%s' in each stage is not run: %s", role, error)
            continue
        if other.time_s <= NEAR * plan.time_s and other.memory_bytes <= limit:
            found.setdefault(other.strategy_hash, other)
    return list(found.values())


def _by_role(task: PlanningTask, plan: StagedPlan, role: str, limit: float) -> StagedPlan:
    """With its peaks, where the plan has some.

    Raises:
        TensorOptError: it does not fit, or cannot be.
    """
    options = StageOptions(plan.cuts, plan.micro_batches, plan.schedule, plan.chunks)
    find = ByRoles(task, role, limit / plan.chunks, tensor=1)
    other = plan_stages(task, options, plan.num_devices, find=find)
    other = replace(other, frontier=plan.frontier, guarantee=plan.guarantee)
    if not plan.peaks:
        return other
    other = with_peaks(other, task.captured, step_of(task))
    if max(other.peaks) > limit:
        raise TensorOptError(f"a stage has a peak of {max(other.peaks)} bytes, of {limit:.0f}")
    return other
