"""The plan that an option picks: kept by an earlier job, or found with what is measured of the
running one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch.distributed as dist

from tensoropt_torch import measure, simulate, staging
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import as_module
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure import ValidationOptions
from tensoropt_torch.measure.machine.clock import SharedClock
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner import picks
from tensoropt_torch.planner.finalists import find_finalists, replanned
from tensoropt_torch.planner.frontier import FrontierPoint
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import Phases
from tensoropt_torch.runtime.agreement import agree_or_raise, from_first_rank, is_distributed
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tensoropt_torch.simulate import SimulatedPoint
from tensoropt_torch.tasks import (
    Example,
    PlanningOptions,
    by_memory,
    captured_task,
    device_count,
    measures,
    profiled_task,
    validation_of,
)
from tensoropt_torch.units import format_bytes, format_duration

log = get_logger(__name__)

Option = Literal["mini_time", "mini_parallelism"]

# Fewer strategies, where more were to be run, do not tell what steps take.
LEAST_STRATEGIES = 2
VALIDATING = "validating"

# Of the time for plans that are run, for those that are picked by what the first took.
SECOND_RACE = 0.2


@dataclass(frozen=True)
class StrategyRequest:
    """What ``find_strategy`` is asked for."""

    example: Example
    planning: PlanningOptions
    option: Option
    memory_limit: float | None
    num_devices: int | None


def find_plan(request: StrategyRequest) -> Plan | StagedPlan:
    """The plan that the option picks, with its model. Collective if a process group runs, and
    then equal on all ranks.

    Raises:
        TensorOptError: as ``find_strategy``; options that decide what ranks do differ.
    """
    planning = request.planning
    _agree_on(request)
    phases = Phases()
    task = staging.with_stage_search(captured_task(request.example, planning, request.num_devices))
    phases.end("capture")
    count = device_count(task, request.num_devices)
    if measures(planning, count):
        _log_budget(planning)
        task = profiled_task(task, planning)
        phases.end("device and collectives")
    finder = _Finder(request, task, count, phases)
    plan = finder.kept() or finder.found()
    log.info("planned in %s", phases)
    return plan.with_model(task.captured)


def _agree_on(request: StrategyRequest) -> None:
    """Raises TensorOptError on every rank if they would not go the same way. Of what decides
    the plan alone, rank 0 speaks for all."""
    planning = request.planning
    validate = replace(validation_of(planning), optimizer=None) if planning.validate else False
    words = (
        f"option={request.option!r}, num_devices={request.num_devices}, "
        f"measure={planning.measure}, measuring={planning.measuring}, validate={validate}"
    )
    agree_or_raise("strategy that is asked for", words, "give the same options on every rank")


def _log_budget(planning: PlanningOptions) -> None:
    log.info(
        "what is not known of this job is measured, within %s with capture and search",
        format_duration(planning.measuring.budget_s),
    )


class _Finder:
    """Finds the plan of a request for a task, with the costs of the running job but for
    operators. Its public methods are collective if a process group runs."""

    def __init__(
        self, request: StrategyRequest, task: PlanningTask, count: int, phases: Phases
    ) -> None:
        self._request = request
        self._planning = request.planning
        self._task = task
        self._count = count
        self._phases = phases
        self._in_job = dist.is_initialized() and count == dist.get_world_size()
        self._runs_here = request.option == "mini_time" and is_distributed() and self._in_job
        self._races = self._can_race()
        self._file = self._kept_plans()

    def kept(self) -> Plan | StagedPlan | None:
        """What an earlier job has found, unless all is to be found again."""
        if self._file is None:
            return None
        found = None if self._is_fresh else measure.taken(self._file)
        self._phases.end("kept plan")
        return found

    def found(self) -> Plan | StagedPlan:
        """With what is measured now. Kept, if all was run that was to be run."""
        task = measured = self._with_operators()
        validated, raced = True, True
        if self._planning.validate:
            task, validated = self._validated(measured)
        plans = from_first_rank(partial(self._pick, task))
        self._phases.end("search")
        plan = plans[0]
        if self._races:
            plan, raced = self._fastest(plans, task)
            log.info("%s takes %r", self._request.option, plan)
        if self._file is not None and validated and raced:
            file = self._file
            from_first_rank(lambda: file.keep(plan, measured.operators))
        return plan

    @property
    def _is_fresh(self) -> bool:
        validate = self._planning.validate
        validates_again = isinstance(validate, ValidationOptions) and validate.fresh
        return self._planning.measuring.fresh or validates_again

    def _kept_plans(self) -> measure.KeptPlans | None:
        """Of jobs alone: who plans for other machines wants to see the search. And of what can
        be written down, which an optimizer of the user's own cannot."""
        if not is_distributed() or validation_of(self._planning).optimizer is not None:
            return None
        asked = {
            "option": self._request.option,
            "limit": self._request.memory_limit,
            "planning": measure.plain_options(self._planning),
            "races": self._races,
        }
        return measure.KeptPlans(self._task, self._count, device_of_group(), asked)

    def _can_race(self) -> bool:
        """Whether the fastest of some plans is taken, as far as there are some."""
        measuring, example = self._planning.measuring, self._request.example
        if not (self._runs_here and self._planning.measure and measuring.finalists > 1):
            return False
        can_race = measure.can_race(as_module(example.model), example.batch)
        if not can_race:
            log.info("no plan is run: that takes real inputs and parameters that are trained")
        return can_race

    def _with_operators(self) -> PlanningTask:
        if not measures(self._planning, self._count):
            return self._task
        measuring, device = self._planning.measuring, device_of_group()
        task = measure.with_operators(self._task, self._count, device, measuring)
        self._phases.end("operators")
        return task

    def _validated(self, task: PlanningTask) -> tuple[PlanningTask, bool]:
        """With the memory limit that random strategies suggest and, if it is for the running
        job, with their times; and whether all of them were run."""
        example, planning = self._request.example, self._planning
        options = validation_of(planning)
        model, device = as_module(example.model), device_of_group()
        validation = measure.validate(model, task, example.batch, device, options)
        fraction = validation.memory_fraction(planning.memory, task.memory_fraction)
        if self._runs_here and len(validation.rows) >= min(options.strategies, LEAST_STRATEGIES):
            task = measure.scaled(task, measure.scales_of(validation.rows))
        elif self._runs_here:
            _warn_unscaled(validation, options)
        self._phases.end(VALIDATING)
        is_complete = validation.asked is None
        return replace(task, memory_fraction=fraction), is_complete

    def _pick(self, task: PlanningTask, fastest: Plan | None = None) -> Sequence[Plan | StagedPlan]:
        """What the option picks, and others that may be faster where they run, the ``fastest``
        so far among them."""
        allowed = task.memory_limit_of(self._request.memory_limit)
        point = self._point(task)
        picked = point.plan
        plans: list[Plan | StagedPlan] = [picked]
        if self._races and isinstance(picked, StagedPlan):
            plans = [*staging.find_contenders(task, picked, allowed), *self._without_stages(task)]
        elif self._races and isinstance(picked, Plan):
            by_peaks = isinstance(point, SimulatedPoint)
            of_sums = point.point if isinstance(point, SimulatedPoint) else point
            others = find_finalists(task, of_sums, allowed)[1:]
            if fastest is not None:
                others.insert(0, replanned(task, fastest, picked))
            if by_peaks:
                others = simulate.within(task, others, allowed, sure_share=self._sure_share)
            plans += others
        chosen = _without_copies(plans)[: self._planning.measuring.finalists]
        return [replace(plan, captured=None) for plan in chosen]

    def _without_stages(self, task: PlanningTask) -> list[Plan | StagedPlan]:
        """What is picked beside a plan in stages, if anything fits."""
        if task.stage_pins:
            return []
        try:
            return [self._point(replace(task, max_stages=1)).plan]
        except TensorOptError as error:
            log.info("nothing without stages is run: %s", error)
            return []

    def _point(self, task: PlanningTask) -> FrontierPoint | SimulatedPoint:
        """What the option picks."""
        option, limit = self._request.option, self._request.memory_limit
        allowed = format_bytes(task.memory_limit_of(limit))
        log.info("%s within %s of memory per device", option, allowed)
        point = by_memory(
            self._planning.memory,
            lambda: self._by_peaks(task, limit, self._sure_share),
            lambda: self._by_sums(task, limit),
        )
        log.info("%s picks %r", option, point)
        return point

    @property
    def _sure_share(self) -> float:
        """Of the memory, up to which sums need no simulation: jobs shall start soon."""
        return simulate.SURE_SHARE if self._planning.memory is None and self._in_job else 0.0

    def _by_peaks(
        self, task: PlanningTask, limit: float | None, share: float
    ) -> FrontierPoint | SimulatedPoint:
        if self._request.option == "mini_time":
            return simulate.mini_time(task, self._count, limit, sure_share=share)
        return simulate.mini_parallelism(task, limit)

    def _by_sums(self, task: PlanningTask, limit: float | None) -> FrontierPoint:
        if self._request.option == "mini_time":
            return picks.mini_time(task, self._count, limit)
        return picks.mini_parallelism(task, limit)

    def _fastest(
        self, plans: Sequence[Plan | StagedPlan], task: PlanningTask
    ) -> tuple[Plan | StagedPlan, bool]:
        """The one whose steps are the shortest, and whether all of them were run. What they took
        corrects the costs, and what is picked by these is run as well, if there is time and none
        is in stages."""
        search_s = self._slowest(self._phases.seconds["search"])
        left_s = self._left_s()
        kept_s = search_s + SECOND_RACE * left_s
        first = self._race(plans, task, left_s - kept_s if kept_s < left_s / 2 else left_s)
        winner = first.winner
        in_stages = any(isinstance(plan, StagedPlan) for plan in plans)
        if in_stages or len(first.runs) < 2 or self._left_s() < search_s:
            return measure.as_it_took(winner), first.complete
        assert isinstance(winner, Plan)
        found = measure.corrected(task, self._count, first.runs, fastest=winner.strategy_hash)
        try:
            picked = from_first_rank(partial(self._pick, found.task, winner))
        except LostRanksError:
            raise
        except TensorOptError as error:
            log.info("nothing is picked by what plans took: %s", error)
            return measure.as_it_took(winner), first.complete
        self._phases.end("search")
        again = self._race(picked, found.task, self._left_s(), found.runs)
        complete = first.complete and again.complete
        if first.best_s < again.best_s:
            return measure.as_it_took(winner), complete
        return again.winner, complete

    def _race(
        self,
        plans: Sequence[Plan | StagedPlan],
        task: PlanningTask,
        budget_s: float,
        known: Mapping[str, measure.PlanRun] | None = None,
    ) -> measure.Race:
        example = self._request.example
        race = measure.race(
            plans,
            as_module(example.model),
            task,
            example.batch,
            device_of_group(),
            budget_s,
            fresh=self._planning.measuring.fresh,
            known=known,
        )
        self._phases.end("race")
        return race

    def _left_s(self) -> float:
        """Seconds that plans may still be run for."""
        measuring, seconds = self._planning.measuring, self._phases.seconds
        planned_s = self._slowest(self._phases.total_s - seconds.get(VALIDATING, 0.0))
        race_s = measuring.finalists_s - self._slowest(seconds.get("race", 0.0))
        return max(0.0, min(race_s, measuring.budget_s - planned_s))

    @staticmethod
    def _slowest(seconds: float) -> float:
        """On the rank that took longest."""
        return SharedClock(device_of_group()).slowest([seconds])[0]


def _without_copies(plans: Sequence[Plan | StagedPlan]) -> list[Plan | StagedPlan]:
    """The first plan of each strategy."""
    found: dict[str, Plan | StagedPlan] = {}
    for plan in plans:
        found.setdefault(plan.strategy_hash, plan)
    return list(found.values())


def _warn_unscaled(found: measure.Validation, options: ValidationOptions) -> None:
    if dist.get_rank() == 0:
        warnings.warn(
            f"{found.amount} could be run within {options.budget_s:g} s: predicted times are not "
            "scaled by them; give validate=ValidationOptions(budget_s=...) more, or None for no "
            "limit",
            stacklevel=2,
        )
