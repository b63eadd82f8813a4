"""Finds plans in stages: those that are given, or the best."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Unpack, get_args

import torch.distributed as dist

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.checks import check_memory_limit, check_whole
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import as_module
from tensoropt_torch.logs import get_logger, rank_of_job
from tensoropt_torch.measure import (
    KeptPlans,
    MeasureOptions,
    Race,
    can_race,
    plain_options,
    race,
    taken,
    with_operators,
)
from tensoropt_torch.measure.machine.clock import SharedClock
from tensoropt_torch.plan import Plan, StagedPlan, StagePins, constraints_of, stage_pins_of
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.stage_schedules import ScheduleName
from tensoropt_torch.runtime.agreement import (
    agree_or_raise,
    from_first_rank,
    is_distributed,
    on_all_ranks,
)
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.simulate import SURE_SHARE
from tensoropt_torch.staging.by_peaks import plan_by_peaks
from tensoropt_torch.staging.contenders import find_contenders
from tensoropt_torch.staging.options import StageOptions, Stages
from tensoropt_torch.staging.parts import plan_stages
from tensoropt_torch.staging.search import SearchedStages, searched_options
from tensoropt_torch.tasks import (
    Example,
    Model,
    PlanningKeywords,
    PlanningOptions,
    by_memory,
    captured_task,
    device_count,
    example_of,
    measures,
    planning_of,
    profiled_task,
    takes_keywords,
)

log = get_logger(__name__)

# That are tried where nothing else is asked for.
MOST_STAGES = 8
MOST_MICRO_BATCHES = 16


@takes_keywords(collective=True, planning=PlanningOptions)
def find_stages(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    stages: Stages | None = None,
    micro_batches: int | None = None,
    schedule: ScheduleName | None = None,
    chunks: int = 1,
    num_devices: int | None = None,
    memory_limit: float | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> StagedPlan:
    """The fastest plan of a model in stages of equally many devices, for ``parallelize``, within
    the memory limit; in a job by what is measured of it, and of some that are run the one whose
    steps are the shortest (``MeasureOptions.finalists``). How many stages there are, where the
    model is cut and in how many micro-batches a step runs is searched, as far as it is not given
    (``staging/search.py``); each stage has the strategy that is fastest for itself, or is data
    parallel if that was faster.

    Collective if a process group runs: rank 0 searches, all ranks get the same plan.

    Args:
        model, args, kwargs: as for ``find_strategy``.
        stages, micro_batches, schedule, chunks: as of ``StageOptions``. Without ``stages`` all
            schedules are tried where none is given, the interleaved one with 2 and 4 chunks where
            no other number is, and without ``micro_batches`` powers of two up to
            ``max_micro_batches``, by default up to 16, into which the model can be cut; else there
            is one, by 1F1B.
        num_devices: of all stages together; by default the processes that run.
        memory_limit: bytes per device; what is found is simulated, and its peaks are within the
            limit (``PlanningOptions.memory``).
        keywords: as for ``find_strategy``; without ``stages`` powers of two up to ``max_stages``
            are tried, those that divide the devices, by default up to 8.

    Raises:
        TensorOptError: on every rank; the model cannot be cut so, or nothing fits.
    """

    def asked() -> tuple[Example, PlanningOptions, StageOptions | SearchedStages]:
        check_memory_limit(memory_limit)
        planning = planning_of(keywords)
        _check_planning(planning, is_searched=stages is None)
        max_stages = planning.max_stages
        if stages is None:
            _check_searched(schedule, chunks, stage_pins_of(planning.pin))
            most = _most_micro_batches(planning)
            max_stages = MOST_STAGES if planning.max_stages == 1 else planning.max_stages
            options: Any = SearchedStages.of(max_stages, micro_batches, most, schedule, chunks)
        else:
            options = StageOptions(
                stages, 1 if micro_batches is None else micro_batches, schedule or "1f1b", chunks
            )
        if stages is not None or not stage_pins_of(planning.pin):
            max_stages = 1  # of the task there are no others
        planning = replace(planning, max_stages=max_stages)
        return example_of(model, args, kwargs, keywords), planning, options

    example, planning, options = on_all_ranks(asked)
    words = (
        f"{options}, num_devices={num_devices}, measure={planning.measure}, "
        f"measuring={planning.measuring}"
    )
    agree_or_raise("stages that are asked for", words, "give the same options on every rank")
    if isinstance(options, StageOptions) and micro_batches is None and rank_of_job() == 0:
        _warn_of_one_micro_batch(options.num_stages)
    task = captured_task(example, planning)
    on_all_ranks(lambda: _check_dims(task, 1 if micro_batches is None else micro_batches))
    count = device_count(task, num_devices)
    plan = _StageFinder(example, planning, options, count, memory_limit).plan(task)
    return replace(plan, captured=task.captured)


@dataclass(frozen=True)
class _StageFinder:
    """Finds what is asked for, or takes what an earlier job has found."""

    example: Example
    planning: PlanningOptions
    options: StageOptions | SearchedStages
    count: int
    memory_limit: float | None

    def plan(self, task: PlanningTask) -> StagedPlan:
        """Without its model. Collective if a process group runs."""
        began = time.perf_counter()
        is_measured = measures(self.planning, self.count)
        if is_measured:
            task = profiled_task(task, self.planning)
        most = self.planning.measuring.finalists if self._can_race() else 1
        file = self._kept_plans(task, most) if is_distributed() else None
        kept = None if file is None or self.planning.measuring.fresh else taken(file)
        if kept is not None:
            return _in_stages(kept)
        if is_measured:
            task = _measured(task, self.options, self.count, self.planning.measuring)
        plans = from_first_rank(partial(self._contenders, task, most))
        plan, complete = plans[0], True
        if len(plans) > 1:
            raced = self._raced(plans, task, time.perf_counter() - began)
            plan, complete = _in_stages(raced.winner), raced.complete
        if file is not None and complete:
            from_first_rank(partial(file.keep, plan, task.operators))
        return plan

    def _can_race(self) -> bool:
        """Whether plans can be run here. Collective."""
        if not (self.planning.measure and is_distributed()):
            return False
        if self.count != dist.get_world_size():
            return False
        return can_race(as_module(self.example.model), self.example.batch)

    def _kept_plans(self, task: PlanningTask, most: int) -> KeptPlans:
        # In words: as data, cuts before and after a module are the same.
        words = repr(self.options)
        asked: dict[str, Any] = {"stages": words, "limit": self.memory_limit, "most": most}
        asked["planning"] = plain_options(self.planning)
        return KeptPlans(task, self.count, device_of_group(), asked)

    def _contenders(self, task: PlanningTask, most: int) -> list[StagedPlan]:
        """The plan, and others that may be faster, at most so many."""
        limit, predictor = task.memory_limit_of(self.memory_limit), self.planning.memory
        options = self.options
        if isinstance(options, SearchedStages):
            options = searched_options(task, options, self.count, limit)
        # As without stages: jobs shall start soon.
        share = SURE_SHARE if predictor is None and is_distributed() else 0.0
        found = by_memory(
            predictor,
            partial(plan_by_peaks, task, options, self.count, limit, share),
            partial(plan_stages, task, options, self.count, limit),
        )
        plans = find_contenders(task, found, limit)[:most] if most > 1 else [found]
        return [replace(plan, captured=None) for plan in plans]

    def _raced(self, plans: Sequence[StagedPlan], task: PlanningTask, planned_s: float) -> Race:
        """Within the time that planning leaves. Collective."""
        device, measuring = device_of_group(), self.planning.measuring
        left_s = measuring.budget_s - SharedClock(device).slowest([planned_s])[0]
        budget_s = max(0.0, min(measuring.finalists_s, left_s))
        model, batch = as_module(self.example.model), self.example.batch
        return race(plans, model, task, batch, device, budget_s, fresh=measuring.fresh)


def _in_stages(plan: Plan | StagedPlan) -> StagedPlan:
    assert isinstance(plan, StagedPlan)
    return plan


def _measured(
    task: PlanningTask,
    options: StageOptions | SearchedStages,
    count: int,
    measuring: MeasureOptions,
) -> PlanningTask:
    """With operators as they are measured in micro-batches, on all devices. Collective."""
    # A micro-batch may have fewer rows than the job has devices.
    whole = replace(task, inputs="replicated", whole_inputs=(), input_dims=())
    if isinstance(options, StageOptions) and options.micro_batches > 1:
        number, deferred = options.micro_batches, options.schedule == "gpipe"
        split = partial(micro_batched, task.captured, number, task.whole_inputs, deferred=deferred)
        whole = replace(whole, captured=on_all_ranks(split))
    found = with_operators(whole, count, device_of_group(), measuring)
    return replace(task, operators=found.operators, measured_on=found.measured_on)


def _check_dims(task: PlanningTask, micro_batches: int) -> None:
    """Of inputs whose rows are in another dim; for numbers that are searched ``tasks`` does."""
    if micro_batches > 1 and task.input_dims:
        name, dim = task.input_dims[0]
        raise TensorOptError(
            f"micro_batches={micro_batches} is not supported with inputs['{name}']={dim}: "
            "micro-batches are cut along dim 0; leave one of them out"
        )


@cache  # once, however many plans are asked for
def _warn_of_one_micro_batch(stages: int) -> None:
    log.warning(
        "%d stages run one micro-batch in a step, so that all of them but one wait at any time; "
        "give micro_batches=%d, or leave stages= out and give max_micro_batches=%d, to have both "
        "searched",
        *(stages, 2 * stages, 4 * stages),
    )


def _most_micro_batches(planning: PlanningOptions) -> int:
    """That are tried: one of inputs whose rows are in another dim, which are not cut."""
    given = planning.inputs.values() if isinstance(planning.inputs, Mapping) else ()
    if planning.max_micro_batches > 1 or any(isinstance(mode, int) for mode in given):
        return planning.max_micro_batches
    return MOST_MICRO_BATCHES


def _check_searched(schedule: ScheduleName | None, chunks: int, pins: StagePins) -> None:
    if schedule is not None:
        check_choice("schedule", schedule, get_args(ScheduleName))
    check_whole("chunks", chunks, least=1)
    if schedule == "interleaved" and pins.begins:
        raise TensorOptError(
            f"{pins}: interleaved stages are searched without pinned modules; give stages=, the "
            "modules that all chunks but the first begin with, and chunks="
        )
    if chunks != 1 and schedule != "interleaved":
        raise TensorOptError(
            f"chunks={chunks} with schedule={schedule!r}: stages have several chunks by "
            "schedule='interleaved' alone; give that, or leave chunks= out"
        )


def _check_planning(planning: PlanningOptions, is_searched: bool) -> None:
    refused = {
        "pin": planning.pin is not None
        and (not is_searched or bool(constraints_of(planning.pin, None))),
        "forbid": planning.forbid is not None,
        "validate": bool(planning.validate),
        "compiled": planning.compiled,
        "max_stages": not is_searched and planning.max_stages != 1,
        "max_micro_batches": not is_searched and planning.max_micro_batches != 1,
    }
    hints = {
        "max_micro_batches": "give micro_batches=, the number of them",
        "max_stages": "give it, or stages=",
        "pin": "pin stages alone, without stages=, or plan without stages (find_strategy)",
    }
    for name, is_given in refused.items():
        if is_given:
            hint = hints.get(name, "leave it out, or plan without stages (find_strategy)")
            raise TensorOptError(f"{name}= is not for plans in stages: {hint}")
