"""How well the costs predict: random strategies of the user's own model, run for a
few steps on the running job."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.calibration.runs import (
    MakeOptimizer,
    Reference,
    RepeatedTimes,
    StepTimes,
    Training,
    optimizer_maker,
    run_in_passes,
)
from tensoropt_torch.emit.context import RankContext
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Plan, Settings
from tensoropt_torch.planner.memory_limits import Predictor
from tensoropt_torch.planner.space import make_planner, varied_strategy
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks
from tensoropt_torch.simulate import StepSettings, simulate_step

# Positional arguments, targets last, and keyword arguments.
log = get_logger(__name__)

Batch = tuple[tuple[Any, ...], dict[str, Any]]

# Runs of strategies done and in all.
Progress = Callable[[int, int], None]

# With fewer strategies their worst case says too little: the default is kept where
# it is the more careful one.
FEW_STRATEGIES = 10

# A strategy whose runs differ by more met a disturbed machine at least once.
DISTURBED_SPREAD = 0.25

# So much longer collectives tell how many there are.
TINY_S = 1e-9


@dataclass(frozen=True)
class ValidationOptions:
    """What to run.

    Attributes:
        strategies: how many random ones.
        seed: of the first; others follow.
        steps: measured steps of each run.
        passes: how often each is run. All of them are run once, then all again; the run
            with the shortest step counts. Those that were run while something else
            slowed the machine are run up to as often again.
        optimizer: makes the optimizer of a module that is run; by default the one
            planned for, whose memory is simulated in any case.
    """

    strategies: int = 20
    seed: int = 0
    steps: int = 5
    passes: int = 2
    optimizer: MakeOptimizer | None = None


@dataclass(frozen=True)
class ValidatedStrategy:
    """One strategy: predicted and measured step time and network time in s, and memory
    per device in bytes: the sum of the search, the simulated and the measured peak.

    Times are those of the run with the shortest step; ``spread`` is how much longer the
    longest one took, as a share of it, None if there was one run. ``collectives`` is how
    many the predicted step has.
    """

    seed: int
    step_s: float
    measured_step_s: float
    network_s: float
    measured_network_s: float
    memory_bytes: float
    simulated_bytes: float
    measured_memory_bytes: float
    spread: float | None = None
    collectives: float = 0.0

    def predicted_bytes(self, predictor: Predictor) -> float:
        """The memory that is compared with a limit."""
        return self.memory_bytes if predictor == "sums" else self.simulated_bytes


@dataclass(frozen=True)
class Validation:
    """All strategies that were run, and what follows from them."""

    rows: tuple[ValidatedStrategy, ...]

    def __repr__(self) -> str:
        return (
            f"Validation({len(self.rows)} strategies; mean errors: step time "
            f"{self.step_error:.1%}, network time {self.network_error:.1%}, memory "
            f"{self.memory_error():.1%})"
        )

    @property
    def step_error(self) -> float:
        """The mean relative error of the step time."""
        return mean_error([(row.step_s, row.measured_step_s) for row in self.rows])

    @property
    def network_error(self) -> float:
        """That of the network time, over strategies that use the network."""
        return mean_error([(row.network_s, row.measured_network_s) for row in self.rows])

    def memory_error(self, predictor: Predictor = "sums") -> float:
        """That of the peak memory."""
        return mean_error(
            [(row.predicted_bytes(predictor), row.measured_memory_bytes) for row in self.rows]
        )

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of predicted and measured step time."""
        return spearman(
            [row.step_s for row in self.rows], [row.measured_step_s for row in self.rows]
        )

    @property
    def spread(self) -> float:
        """The mean difference between runs of the same strategy; NaN if each was run
        once."""
        spreads = [row.spread for row in self.rows if row.spread is not None]
        return statistics.fmean(spreads) if spreads else math.nan

    def undisturbed(self) -> Validation:
        """The strategies whose runs differ by at most ``DISTURBED_SPREAD``."""
        return Validation(
            tuple(row for row in self.rows if (row.spread or 0.0) <= DISTURBED_SPREAD)
        )

    def memory_fraction(self, predictor: Predictor, default: float) -> float:
        """The part of a device's memory that predictions may fill, so that no strategy
        that was run would have needed more than the device has; of few strategies not
        more than the default."""
        worst = max(row.measured_memory_bytes / row.predicted_bytes(predictor) for row in self.rows)
        fraction = min(1.0, 1 / worst)
        return min(fraction, default) if len(self.rows) < FEW_STRATEGIES else fraction

    def to_record(self) -> dict[str, Any]:
        """As plain values."""
        calm = self.undisturbed()
        return {
            **self.time_figures(),
            "spread": self.spread,
            "undisturbed": {"strategies": len(calm.rows), **calm.time_figures()},
            "memory_error": self.memory_error(),
            "simulated_memory_error": self.memory_error("simulated"),
            "memory_fraction": self.memory_fraction("sums", 1.0),
            "simulated_memory_fraction": self.memory_fraction("simulated", 1.0),
            "rows": [asdict(row) for row in self.rows],
        }

    def time_figures(self) -> dict[str, float]:
        """What the times say, as plain values."""
        return {
            "step_error": self.step_error,
            "network_error": self.network_error,
            "rank_correlation": self.rank_correlation,
        }


def mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    """The mean of |predicted / measured - 1|, over pairs that were measured; NaN
    without any."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs if measured > 0]
    return statistics.fmean(errors) if errors else math.nan


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The rank correlation; equal values share the mean of their ranks. NaN for fewer
    than two values, or if all of one side are equal."""
    if len(a) < 2 or len(set(a)) == 1 or len(set(b)) == 1:
        return math.nan
    return statistics.correlation(_ranks(a), _ranks(b))


def validate(
    model: nn.Module,
    task: PlanningTask,
    batch: Batch,
    device: torch.device,
    options: ValidationOptions | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Runs random strategies of the task's model. Collective; equal on all ranks.

    Args:
        model: with real values or on the meta device; it is not changed.
        task: with the costs to be tested, and the captured model.
        batch: the global batch, real tensors.
        device: where to run.
        options, progress: what to run, and who is told.

    Raises:
        TensorOptError: an input is on the meta device, or a strategy does not run.
    """
    options = options or ValidationOptions()
    on_all_ranks(lambda: _check(batch, options))
    log.info("running %d random strategies, each %d times", options.strategies, options.passes)
    lab = _Lab(model, task, batch, device, options)
    runs = [_Run(lab, options.seed + index) for index in range(options.strategies)]
    measures = [run.time for run in runs]
    found = run_in_passes(measures, options.passes, progress, Reference(device))
    lab.close()
    result = Validation(tuple(run.row(times) for run, times in zip(runs, found, strict=True)))
    for row in result.rows:
        log.debug("%r", row)
    log.info("%r", result)
    return result


class _Lab:
    """What all runs of a task have in common."""

    def __init__(
        self,
        model: nn.Module,
        task: PlanningTask,
        batch: Batch,
        device: torch.device,
        options: ValidationOptions,
    ) -> None:
        self._model = model
        self._captured = task.captured
        self._settings = task.settings(dist.get_world_size())
        self._planner = make_planner(task.captured, self._settings)
        collective_s = task.cluster.device.runtime.collective_s + TINY_S
        slower = task.with_runtime(collective_s=collective_s).settings(dist.get_world_size())
        self._slower_planner = make_planner(task.captured, slower)
        self._context = RankContext.make([size for size, _ in self._settings.mesh_axes], device)
        self.batch = _share(batch, task.captured, self._settings, device)
        self._make_optimizer = options.optimizer or optimizer_maker(task.optimizer)
        self._step = StepSettings.on(device, task.optimizer)
        self.steps = options.steps

    def random_plan(self, seed: int) -> tuple[Plan, float, float]:
        """A strategy, its predicted network time in s, and how many collectives it has."""
        strategy = varied_strategy(self._planner, seed)
        plan = Plan.of(self._settings, self._captured, strategy)
        network_s = self._planner.network_time(strategy)
        added_s = self._slower_planner.network_time(strategy) - network_s
        return plan, network_s, added_s / TINY_S

    def simulated_bytes(self, plan: Plan) -> float:
        """The simulated peak of the first rank, on all ranks."""
        return from_first_rank(partial(_simulated, plan, self._captured, self._step))

    def start(self, plan: Plan) -> Training:
        """What trains with a plan, with the values of the model."""
        args, kwargs = self.batch
        return Training.of(self._model, plan, self._context, self._make_optimizer, *args, **kwargs)

    def close(self) -> None:
        """Leaves the process groups."""
        self._context.groups.close()


class _Run:
    """One strategy: predicted when it is made, measured as often as it is run."""

    def __init__(self, lab: _Lab, seed: int) -> None:
        self._lab = lab
        self._seed = seed
        self._plan, self._network_s, self._collectives = lab.random_plan(seed)
        self._peaks: tuple[float, float] | None = None  # simulated, measured

    def time(self) -> StepTimes:
        """Trains; the first time memory is measured as well, which is always the same."""
        training = self._lab.start(self._plan)
        times = training.times(self._lab.steps)
        if self._peaks is None:
            simulated = self._lab.simulated_bytes(self._plan)
            self._peaks = simulated, training.peak_bytes(self._lab.batch)
        return times

    def row(self, times: RepeatedTimes) -> ValidatedStrategy:
        """Predicted next to measured."""
        assert self._peaks is not None
        return ValidatedStrategy(
            self._seed,
            self._plan.time_s,
            times.fastest.step_s,
            self._network_s,
            times.fastest.network_s,
            self._plan.memory_bytes,
            *self._peaks,
            times.spread,
            self._collectives,
        )


def _simulated(plan: Plan, captured: CapturedModel, step: StepSettings) -> float:
    return float(simulate_step(plan, captured, step).peak_bytes)


def _check(batch: Batch, options: ValidationOptions) -> None:
    if min(options.strategies, options.steps, options.passes) < 1:
        raise TensorOptError(
            f"{options.strategies} strategies of {options.steps} steps in {options.passes} passes "
            "cannot be validated; give at least 1 of each"
        )
    for index, value in enumerate(pytree.tree_leaves(batch)):
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise TensorOptError(
                f"input {index} is on the meta device; strategies are run to validate them: give "
                "real tensors of the global batch"
            )


def _share(
    batch: Batch, captured: CapturedModel, settings: Settings, device: torch.device
) -> Batch:
    """What the rank gets of a batch."""
    args, kwargs = batch
    values, spec = pytree.tree_flatten((tuple(args), dict(sorted(kwargs.items()))))

    def part(value: Any, name: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if settings.is_shared_out(name) and value.dim() > 0:
            value = value.chunk(dist.get_world_size())[dist.get_rank()].clone()
        return value.to(device)

    names = [source.names[0] for source in captured.inputs]
    parts = [part(value, name) for value, name in zip(values, names, strict=True)]
    shared: Batch = pytree.tree_unflatten(parts, spec)
    return shared


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]
