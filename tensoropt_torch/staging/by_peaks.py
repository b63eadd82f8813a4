"""Plans in stages within a limit of simulated peaks: each stage takes what is fastest for itself
with a sum of memory by which its peak fits.

Sums stand for peaks: where the peak of a stage is above the limit, or below, its strategy is
looked for again with a sum that is so much less, or more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.memory_limits import limit_advice, recompute_advice
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.simulate import HOPELESS, step_of, with_peaks
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import Fastest, plan_stages
from tensoropt_torch.units import format_bytes

log = get_logger(__name__)

ROUNDS = 5  # of plans that are simulated


def plan_by_peaks(
    task: PlanningTask, options: StageOptions, count: int, limit: float, sure_share: float = 0.0
) -> StagedPlan:
    """As ``plan_stages``: the fastest of a few plans whose peaks are within the limit, in bytes of
    a device. Sums of at most ``sure_share`` of it need no simulation.

    Raises:
        TensorOptError: none of them fits; says the least peak.
        NotSimulatedError: the step of a stage cannot be simulated; says why.
    """
    step, stages = step_of(task), options.num_stages
    limits = [limit / options.chunks] * options.num_parts
    best: StagedPlan | None = None
    least, seen = math.inf, set()
    with progress("simulating peaks of stages", ticking=True) as simulated:
        for _ in range(ROUNDS):
            plan = _planned(task, options, count, limits, limit)
            if plan.hash in seen:
                break
            seen.add(plan.hash)
            if plan.memory_bytes <= sure_share * limit:
                return plan
            plan = with_peaks(plan, task.captured, step)
            simulated()
            log.info("peaks of stages: %s", ", ".join(map(format_bytes, plan.peaks)))
            peak = max(plan.peaks)
            least = min(least, peak)
            if peak <= limit and (best is None or plan.time_s < best.time_s):
                best = plan
            limits = [
                part.memory_bytes * limit / plan.peaks[number % stages]
                for number, part in enumerate(plan.parts)
            ]
    if best is None:
        raise TensorOptError(
            f"no plan in these {stages} stages has a simulated peak of at most "
            f"{format_bytes(limit)} per device: the least that was found is "
            f"{format_bytes(least)}; {limit_advice(least, task.cluster.device.memory_bytes)}"
            f"{recompute_advice(task.recompute)}raise micro_batches"
        )
    return best


def _planned(
    task: PlanningTask, options: StageOptions, count: int, limits: Sequence[float], limit: float
) -> StagedPlan:
    """Each part within its sum, or where it needs more with the least of all."""
    find = _WithinOrLeast(task, limits, HOPELESS * limit)
    return replace(plan_stages(task, options, count, find=find), captured=task.captured)


@dataclass
class _WithinOrLeast:
    """Finds the strategies of parts, in their order: each the fastest within its sum, or that
    which needs the least, up to ``most`` bytes."""

    task: PlanningTask
    limits: Sequence[float]
    most: float

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    def __call__(
        self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel, held: float
    ) -> Plan:
        """See ``FindPart``."""
        allowed = max(0.0, self.limits[next(self._numbers)] - held)
        find = Fastest(self.task, allowed)
        frontier = find.frontier(space, settings, captured, allowed)
        if frontier.smallest.memory_bytes > allowed:
            allowed = min(frontier.smallest.memory_bytes, self.most)
        return frontier.whole_plan(frontier.at(allowed).index)
