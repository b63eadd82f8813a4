"""The fastest of some plans, each of which trains for a few steps on the running job.

Predictions tell plans apart that differ by more than predictions are off. Between the others
measuring decides, so that a plan is taken whose steps were seen to be the shortest, beside
those of plain data parallelism. What they took is kept for later jobs. Plans in stages are among
them, or alone.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import torch
from torch import nn

from tensoropt_torch.config.records import NotNegative, Positive, Record
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.kept.conditioned import ConditionedFile
from tensoropt_torch.measure.kept.files import is_written, read_or
from tensoropt_torch.measure.kept.sealed import SealedFormat
from tensoropt_torch.measure.runs.batch import Batch, index_on_meta
from tensoropt_torch.measure.runs.budget import Budget, GoesOn, OutOfTimeError
from tensoropt_torch.measure.runs.training import StepTimes, Training
from tensoropt_torch.measure.runs.trainings import Trainings, conditions_of
from tensoropt_torch.plan import Choices, Plan, Settings, StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import Step, progress
from tensoropt_torch.runtime.agreement import from_first_rank, gather, on_all_ranks
from tensoropt_torch.runtime.lost_ranks import LostRanksError
from tensoropt_torch.units import format_seconds
from tensoropt_torch.values import WeightSource

log = get_logger(__name__)

FILE = SealedFormat("file of times of steps", 5, "run them again")
RUN_AGAIN = "plans are run again"
# Of a plan in a round, besides one that warms up: the more the shorter they are, since what else
# the machine does for some milliseconds would decide between them.
LEAST_STEPS, STEPS, MOST_STEPS = 2, 3, 16
ROUND_S = 0.3
# Plans whose best round took so much longer than that of the fastest are out after it: what else
# the machine does in a round makes single ones differ by as much. After the last none is.
MARGINS = (0.5, 0.2, 0.1, 0.05, 0.03, math.inf)


@dataclass(frozen=True)
class _Job:
    """What trains, on what, and where."""

    model: nn.Module
    task: PlanningTask
    settings: Settings
    batch: Batch
    device: torch.device


@dataclass(frozen=True)
class PlanRun(Record):
    """What steps of a plan took, in s (``StepTimes``): in its best round, by which plans are
    compared, and in a usual one, of which predictions are; and of the latter the network, without
    what is sent between stages."""

    micro_batches: int
    choices: Choices | None  # None: in stages
    best_s: Positive
    step_s: Positive
    network_s: NotNegative


@dataclass(frozen=True)
class Race:
    """What came of one.

    Attributes:
        winner: the plan whose steps are the shortest, with what they usually took.
        complete: whether all plans were run, by this job or an earlier one.
        runs: what is known of these plans, by ``Plan.strategy_hash``.
    """

    winner: Plan | StagedPlan
    complete: bool
    runs: Mapping[str, PlanRun] = field(default_factory=dict)

    @property
    def best_s(self) -> float:
        """Seconds of a step of the winner in its best round; infinite if none was run."""
        run = self.runs.get(self.winner.strategy_hash)
        return math.inf if run is None else run.best_s


@dataclass(frozen=True)
class _Content(Record):
    runs: Mapping[str, PlanRun]


def can_race(model: nn.Module, batch: Batch) -> bool:
    """Whether plans of the model can be run: with real inputs and parameters to train.
    Collective; equal on all ranks."""
    is_trained = any(parameter.requires_grad for parameter in model.parameters())
    return all(gather(is_trained and index_on_meta(batch) is None))


@torch.enable_grad()  # it is training that is planned, wherever that is done
def race(
    plans: Sequence[Plan | StagedPlan],
    model: nn.Module,
    task: PlanningTask,
    batch: Batch,
    device: torch.device,
    budget_s: float,
    *,
    fresh: bool = False,
    known: Mapping[str, PlanRun] | None = None,
) -> Race:
    """The one whose steps are the shortest; the first without enough time, or, with a warning,
    where a step fails on all ranks. Requires that they can be run (``can_race``). Collective;
    equal on all ranks.

    Args:
        plans: for all processes of the job, that differ in their strategies, stages and
            micro-batches alone.
        model: with real values or on the meta device; it is not changed.
        task: what they are plans of.
        batch: the global batch.
        device: where to run.
        budget_s: seconds for all of them, from the end of the first.
        fresh: those are run again that an earlier job has run.
        known: what this job has run before, with the same programs.
    """
    settings = task.settings(plans[0].num_devices)
    file = ConditionedFile("steps", FILE, conditions_of(task.captured, settings, device))
    none: dict[str, PlanRun] = {}
    kept = from_first_rank(
        lambda: none if fresh else read_or(none, partial(_load, file), RUN_AGAIN)
    )
    runs = kept | dict(known or {})
    missing = [plan for plan in plans if plan.strategy_hash not in runs]
    if missing:
        try:
            rivals = [runs[p.strategy_hash].best_s for p in plans if p.strategy_hash in runs]
            job = _Job(model, task, settings, batch, device)
            runs |= on_all_ranks(partial(_run, missing, rivals, job, budget_s))
        except LostRanksError:
            raise
        except (RuntimeError, ValueError, LookupError) as error:  # values of the example, maybe
            warnings.warn(f"plans are not run, since a step fails: {error}", stacklevel=3)
            return Race(plans[0], complete=False)
    if missing or known:
        content = asdict(_Content(runs))
        from_first_rank(lambda: is_written(lambda: file.write(content), "what plans took"))
    found = {p.strategy_hash: runs[p.strategy_hash] for p in plans if p.strategy_hash in runs}
    if not found:
        return Race(plans[0], complete=False)
    raced = [(found[p.strategy_hash], p) for p in plans if p.strategy_hash in found]
    for run, plan in raced:
        times = format_seconds(run.step_s), format_seconds(run.best_s)
        log.info("%r takes %s, in its best round %s", plan, *times)
    run, fastest = min(raced, key=lambda entry: entry[0].best_s)
    return Race(replace(fastest, measured_s=run.step_s), len(found) == len(plans), found)


def _run(
    plans: Sequence[Plan | StagedPlan],
    rivals_s: Sequence[float],
    job: _Job,
    budget_s: float,
) -> dict[str, PlanRun]:
    """By strategy, of those for which there was time; beside others, of which it is known how
    long a step takes."""
    own = job.model, job.task, job.settings, job.batch, job.device
    with closing(Trainings(*own)) as trainings:  # also where a step fails
        return _results(plans, rivals_s, job, budget_s, trainings)


def _results(
    plans: Sequence[Plan | StagedPlan],
    rivals_s: Sequence[float],
    job: _Job,
    budget_s: float,
    trainings: Trainings,
) -> dict[str, PlanRun]:
    """See ``_run``; nothing that runs is left."""
    task = job.task
    budget = Budget(budget_s, job.device)
    # Modules are made once if there is place for all of them.
    keeps = sum(plan.memory_bytes for plan in plans) <= task.default_memory_limit
    about_s = sum(plan.time_s * (_steps(plan) + 1) for plan in plans) * len(MARGINS)
    what = f"running {len(plans)} {'plan' if len(plans) == 1 else 'plans'}"
    with progress(what, len(MARGINS) * len(plans), about_s=about_s, at_most_s=budget_s) as step:
        runs = [_Finalist(plan.with_model(task.captured), trainings) for plan in plans]
        measures = [partial(run.time, budget, len(runs) - i, keeps) for i, run in enumerate(runs)]
        rounds_s = _race(measures, rivals_s, budget, step)
    return {plans[i].strategy_hash: runs[i].result(rounds_s[i]) for i in rounds_s}


def _race(
    runs: Sequence[Callable[[], StepTimes]],
    rivals_s: Sequence[float],
    budget: Budget,
    step: Step,
) -> dict[int, list[float]]:
    """Seconds of a step in each round, by index, of those that were run: in turn, so that what
    disturbs the machine for a while meets all of them, and the longer the race goes on, the
    fewer of them. ``rivals_s`` are best rounds of plans that were run before."""
    rounds_s: dict[int, list[float]] = {}
    running = list(range(len(runs)))
    done = 0
    for number, margin in enumerate(MARGINS):
        total = done + (len(MARGINS) - number) * len(running)
        for index in running:
            if (rounds_s or rivals_s) and budget.is_spent():
                return rounds_s
            try:
                step_s = runs[index]().step_s
            except OutOfTimeError:
                return rounds_s
            rounds_s.setdefault(index, []).append(step_s)
            done += 1
            step(total=total)
        limit_s = (1 + margin) * min([*map(min, rounds_s.values()), *rivals_s])
        running = [index for index in running if min(rounds_s[index]) <= limit_s]
        if len(running) + len(rivals_s) <= 1:
            break
    return rounds_s


class _Finalist:
    """One plan."""

    def __init__(self, plan: Plan | StagedPlan, trainings: Trainings) -> None:
        self._plan = plan
        self._trainings = trainings
        self._training: Training | None = None
        self._network_share: float | None = None

    def time(self, budget: Budget, waiting: int, keeps: bool) -> StepTimes:
        """Trains, the first time within a share of the time, of which others that are
        ``waiting`` get theirs."""
        was_run = self._network_share is not None
        goes_on = self._within(budget if was_run else budget.share(waiting))
        training = self._training or self._trainings.start(self._plan, MADE_UP)
        self._training = training if keeps else None
        measured = partial(training.times, goes_on=goes_on, over=statistics.median)
        found = measured(_steps(self._plan), warm_ups=1, network=False)
        if not was_run:  # by itself, since it may slow steps down
            timed = measured(LEAST_STEPS, warm_ups=0)
            self._network_share = timed.network_s / timed.step_s
        return found

    def result(self, rounds_s: Sequence[float]) -> PlanRun:
        """After it was run, with what a step took in each round."""
        assert self._network_share is not None
        plan, step_s = self._plan, statistics.median(rounds_s)
        network_s = self._network_share * step_s
        choices = plan.choices if isinstance(plan, Plan) else None
        return PlanRun(plan.micro_batches, choices, min(rounds_s), step_s, network_s)

    @staticmethod
    def _within(share: Budget) -> GoesOn:
        """As long as there is some of it, and for some steps in any case."""
        return lambda measured: measured < LEAST_STEPS or not share.is_spent()


def _steps(plan: Plan | StagedPlan) -> int:
    """In a round."""
    return max(STEPS, min(math.ceil(ROUND_S / plan.time_s), MOST_STEPS))


def _any_values(module: nn.Module) -> None:
    """Of a model on the meta device, whose values do not matter here."""
    for parameter in module.parameters(recurse=False):
        nn.init.normal_(parameter, std=0.02)
    for buffer in module.buffers(recurse=False):
        buffer.fill_(1)


MADE_UP = WeightSource(initialise=_any_values)


def _load(file: ConditionedFile) -> dict[str, PlanRun]:
    content = file.read_as(_Content)
    return {} if content is None else dict(content.runs)
