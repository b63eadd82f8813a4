"""Validation: random strategies of the user's own model, run for a few steps on the running
job. What they took is kept, and a later run of the same program takes it from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.kept.files import is_written, read_or
from tensoropt_torch.measure.kept.strategies import FILE, KeptStrategy, StrategyStore
from tensoropt_torch.measure.runs.batch import Batch, index_on_meta
from tensoropt_torch.measure.runs.budget import Budget, GoesOn, check_budget
from tensoropt_torch.measure.runs.peak_memory import ENOUGH
from tensoropt_torch.measure.runs.spaces import Space, spaces_of
from tensoropt_torch.measure.runs.training import (
    WARM_UPS,
    Reference,
    RepeatedTimes,
    StepTimes,
    Training,
    run_in_passes,
)
from tensoropt_torch.measure.runs.trainings import Trainings, conditions_of
from tensoropt_torch.measure.runs.validation import ValidatedStrategy, Validation
from tensoropt_torch.measure.runs.validation_options import ValidationOptions
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import Step, Tell, progress, silent
from tensoropt_torch.runtime.agreement import agree_or_raise, from_first_rank, on_all_ranks
from tensoropt_torch.simulate import StepSettings, simulate_step
from tensoropt_torch.space.search_space import step_time_s, varied_strategy

log = get_logger(__name__)

# A run that takes longer than its share ends after so many measured steps.
LEAST_STEPS = 2


def validate(
    model: nn.Module,
    task: PlanningTask,
    batch: Batch,
    device: torch.device,
    options: ValidationOptions | None = None,
    tell: Tell | None = None,
) -> Validation:
    """Runs random strategies of the task's model, in turn in each number of micro-batches that
    the task has. Collective; equal on all ranks.

    Args:
        model: with real values or on the meta device; it is not changed.
        task: with the costs to be tested, and the captured model.
        batch: the global batch, real tensors.
        device: where to run.
        options, tell: what to run, and who is told of runs done and in all.

    Raises:
        TensorOptError: an input is on the meta device, options are not allowed or differ
            between ranks, or a strategy does not run.
    """
    options = options or ValidationOptions()
    on_all_ranks(lambda: _check(batch, options))
    words = repr(replace(options, optimizer=None))
    agree_or_raise("validation", words, "give the same options on every rank")
    common = _Validating(model, task, batch, device, options)
    known = common.known()
    seeds = range(options.seed, options.seed + options.strategies)
    runs = [_StrategyRun(common, seed, known.get(seed)) for seed in seeds]
    with closing(common.trainings):
        _make([run for run in runs if run.kept is None], common, tell)
    common.keep([run.kept for run in runs if run.kept and run.kept != known.get(run.seed)])
    rows = tuple(run.row() for run in runs if run.kept is not None)
    result = Validation(rows, options.strategies if len(rows) < len(runs) else None)
    for row in result.rows:
        log.debug("%r", row)
    log.info("%r", result)
    return result


def _make(runs: Sequence[_StrategyRun], common: _Validating, tell: Tell | None) -> None:
    """Makes the runs, as many as the budget allows."""
    if not runs or common.budget.is_spent():
        return
    options, common.waiting = common.options, len(runs)
    with progress(
        f"running {len(runs)} random {'strategy' if len(runs) == 1 else 'strategies'}",
        options.passes * len(runs),
        about_s=common.about_s(runs),
        at_most_s=options.budget_s,
        tell=tell,
    ) as common.step:
        measures = [run.time for run in runs]
        reference = Reference(common.device)
        found = run_in_passes(measures, options.passes, common.step, reference, common.goes_on())
    for run, times in zip(runs, found, strict=True):
        if times:
            run.keep(RepeatedTimes.of(times))


class _Validating:
    """What all strategies of a validation have in common."""

    def __init__(
        self,
        model: nn.Module,
        task: PlanningTask,
        batch: Batch,
        device: torch.device,
        options: ValidationOptions,
    ) -> None:
        self.options = options
        self.device = device
        self.step: Step = silent
        self.waiting = 0  # strategies that were not run yet
        self.budget = Budget(options.budget_s, device)
        self._captured = task.captured
        self._settings = task.settings(dist.get_world_size())
        self._spaces = spaces_of(task, dist.get_world_size())
        own = task, self._settings, batch, device, options.optimizer
        self.trainings = Trainings(model, *own)
        self._step_settings = StepSettings.on(device, task.optimizer)
        self._store = None if options.optimizer else StrategyStore(self._conditions())

    def goes_on(self, share: Budget | None = None, least: int = 0) -> GoesOn:
        """Goes on as long as there is time left, and after so many measurements, as long as
        there is some of a share of it. Shows the time that has passed."""

        def answer(measured: int) -> bool:
            self.step(more=0)
            if self.budget.is_spent():
                return False
            return share is None or measured < least or not share.is_spent()

        return answer

    def share(self) -> Budget:
        """Of the time that is left, for one of the strategies that were not run yet."""
        share = self.budget.share(self.waiting)
        self.waiting -= 1
        return share

    def known(self) -> dict[int, KeptStrategy]:
        """What earlier jobs have run, by seed."""
        if self._store is None or self.options.fresh:
            return {}
        found = from_first_rank(self._readable)
        if found:
            log.info("%d strategies were run before: '%s'", len(found), self._store.path)
        return found

    def keep(self, strategies: Sequence[KeptStrategy]) -> None:
        """For later jobs."""
        store = self._store
        if store is None or not strategies:
            return

        def write() -> None:
            store.save((self._readable() | {kept.seed: kept for kept in strategies}).values())

        from_first_rank(lambda: is_written(write, "what strategies took"))

    def _readable(self) -> dict[int, KeptStrategy]:
        """What the file has."""
        assert self._store is not None
        load = partial(_load, self._store, self._space)
        return read_or({}, load, "strategies are run again")

    def plan(self, seed: int, kept: KeptStrategy | None) -> Plan:
        """A random strategy, or one that was kept, by the costs of now."""
        space = self._space(seed)
        core = space.core
        if kept is None:
            strategy = varied_strategy(core, seed)
            return Plan.of(core, space.settings, space.captured, strategy)
        strategy = _strategy(kept, core)
        return Plan.of(core, space.settings, space.captured, strategy).with_part(
            memory_bytes=kept.memory_bytes,
            time_s=step_time_s(core, strategy),
        )

    def network(self, seed: int, plan: Plan) -> tuple[float, float]:
        """Predicted: time of the network in s, and how many collectives there are."""
        space = self._space(seed)
        return space.network(plan.choices.strategy(space.core))

    def simulated_bytes(self, plan: Plan) -> float | None:
        """The simulated peak of the first rank, on all ranks, if it is wanted."""
        if not self.options.simulate:
            return None
        return from_first_rank(partial(_simulated, plan, self._captured, self._step_settings))

    def about_s(self, runs: Sequence[_StrategyRun]) -> float:
        """What all runs take, if predictions are right and every model is made as fast as
        the first, which is made here."""
        options = self.options
        steps = options.steps + 1 + ENOUGH + (options.passes - 1) * (WARM_UPS + options.steps)
        steps_s = sum(run.plan.time_s for run in runs) * steps
        return steps_s + options.passes * len(runs) * runs[0].start()

    def _conditions(self) -> dict[str, Any]:
        """What decides what strategies there are and what they take."""
        return {
            **conditions_of(self._captured, self._settings, self.device),
            "micro_batches": [space.settings.micro_batches for space in self._spaces],
            "steps": self.options.steps,
            "passes": self.options.passes,
        }

    def _space(self, seed: int) -> Space:
        return self._spaces[seed % len(self._spaces)]


class _StrategyRun:
    """One strategy: predicted when it is made, measured as often as it is run."""

    def __init__(self, common: _Validating, seed: int, kept: KeptStrategy | None) -> None:
        self._common = common
        self.seed = seed
        self.plan = common.plan(seed, kept)
        if kept and kept.simulated_bytes is None:
            kept = replace(kept, simulated_bytes=common.simulated_bytes(self.plan))
        self.kept = kept
        self._training: Training | None = None
        self._peak_bytes: float | None = None
        self._simulated_bytes: float | None = None

    def start(self) -> float:
        """Makes the model for the next run; returns the seconds that it took."""
        start_s = time.perf_counter()
        self._training = self._common.trainings.start(self.plan)
        return time.perf_counter() - start_s

    def time(self) -> StepTimes:
        """Trains, the first time within a share of the time, so that other strategies get
        theirs."""
        common, training = self._common, self._training or self._common.trainings.start(self.plan)
        self._training = None
        if self._peak_bytes is not None:
            return training.times(common.options.steps, goes_on=common.goes_on())
        share = common.share()
        self._simulated_bytes = common.simulated_bytes(self.plan)
        # Memory is always the same, so it is measured once; which warms up.
        goes_on = common.goes_on(share.share(2), least=1)
        self._peak_bytes = training.peak_bytes(common.trainings.batch, goes_on)
        goes_on = common.goes_on(share, LEAST_STEPS)
        return training.times(common.options.steps, warm_ups=0, goes_on=goes_on)

    def keep(self, times: RepeatedTimes) -> None:
        """It took so long."""
        assert self._peak_bytes is not None
        self.kept = KeptStrategy(
            self.seed,
            self.plan.memory_bytes,
            self.plan.choices.labels,
            self.plan.choices.kept,
            times.fastest.step_s,
            times.fastest.network_s,
            self._peak_bytes,
            times.spread,
            self._simulated_bytes,
        )

    def row(self) -> ValidatedStrategy:
        """Predicted next to measured."""
        kept, plan = self.kept, self.plan
        assert kept is not None
        network_s, collectives = self._common.network(self.seed, plan)
        return ValidatedStrategy(
            self.seed,
            plan.time_s,
            kept.step_s,
            network_s,
            kept.network_s,
            plan.memory_bytes,
            kept.simulated_bytes if self._common.options.simulate else None,
            kept.peak_bytes,
            kept.spread,
            collectives,
        )


def _strategy(kept: KeptStrategy, core: _C.SearchSpace) -> _C.Strategy:
    """Without its costs."""
    edges = {_C.SpaceEdgeId(number): words for number, words in kept.edges}
    return core.strategy(kept.configs, edges)


def _load(store: StrategyStore, space_of: Callable[[int], Space]) -> dict[int, KeptStrategy]:
    """The strategies of a file, which are some of these spaces."""
    found = store.load()
    for kept in found.values():
        core = space_of(kept.seed).core
        try:
            core.network_time(_strategy(kept, core))
        except ValueError as error:
            raise FILE.damaged(f"'{store.path}'", str(error)) from error
    return found


def _simulated(plan: Plan, captured: CapturedModel, step: StepSettings) -> float | None:
    """None where a step cannot be simulated."""
    try:
        return float(simulate_step(plan, captured, step).peak_bytes)
    except TensorOptError as error:
        log.info("memory is not simulated: %s", error)
        return None


def _check(batch: Batch, options: ValidationOptions) -> None:
    check_budget("budget_s", options.budget_s)
    if min(options.strategies, options.steps, options.passes) < 1:
        raise TensorOptError(
            f"{options.strategies} strategies of {options.steps} steps in {options.passes} passes "
            "cannot be validated; give at least 1 of each"
        )
    index = index_on_meta(batch)
    if index is not None:
        raise TensorOptError(
            f"input {index} is on the meta device; strategies are run to validate them: give "
            "real tensors of the global batch"
        )
