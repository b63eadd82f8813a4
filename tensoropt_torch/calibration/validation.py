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

from tensoropt_torch import emit
from tensoropt_torch.calibration.runs import OPTIMIZERS, MakeOptimizer, peak_bytes, time_steps
from tensoropt_torch.emit.parallelize import RankContext
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.options import PlanningTask, Predictor
from tensoropt_torch.planner.space import make_planner
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks
from tensoropt_torch.simulate import StepSettings, simulate_step

# Positional arguments, targets last, and keyword arguments.
Batch = tuple[tuple[Any, ...], dict[str, Any]]

# Strategies done and in all.
Progress = Callable[[int, int], None]

# With fewer strategies their worst case says too little: the default is kept where
# it is the more careful one.
FEW_STRATEGIES = 10


@dataclass(frozen=True)
class ValidationOptions:
    """What to run.

    Attributes:
        strategies: how many random ones.
        seed: of the first; others follow.
        steps: measured steps of each.
        optimizer: makes the optimizer of a module that is run; by default the one
            planned for, whose memory is simulated in any case.
    """

    strategies: int = 20
    seed: int = 0
    steps: int = 5
    optimizer: MakeOptimizer | None = None


@dataclass(frozen=True)
class Comparison:
    """One strategy: predicted and measured step time and network time in s, and memory
    per device in bytes: the sum of the search, the simulated and the measured peak."""

    seed: int
    step_s: float
    measured_step_s: float
    network_s: float
    measured_network_s: float
    memory_bytes: float
    simulated_bytes: float
    measured_memory_bytes: float

    def predicted_bytes(self, predictor: Predictor) -> float:
        """The memory that is compared with a limit."""
        return self.memory_bytes if predictor == "sums" else self.simulated_bytes


@dataclass(frozen=True)
class Validation:
    """All comparisons, and what follows from them."""

    rows: tuple[Comparison, ...]

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

    def memory_fraction(self, predictor: Predictor, default: float) -> float:
        """The part of a device's memory that predictions may fill, so that no strategy
        that was run would have needed more than the device has; of few strategies not
        more than the default."""
        worst = max(row.measured_memory_bytes / row.predicted_bytes(predictor) for row in self.rows)
        fraction = min(1.0, 1 / worst)
        return min(fraction, default) if len(self.rows) < FEW_STRATEGIES else fraction

    def to_record(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "step_error": self.step_error,
            "network_error": self.network_error,
            "memory_error": self.memory_error(),
            "simulated_memory_error": self.memory_error("simulated"),
            "rank_correlation": self.rank_correlation,
            "memory_fraction": self.memory_fraction("sums", 1.0),
            "simulated_memory_fraction": self.memory_fraction("simulated", 1.0),
            "rows": [asdict(row) for row in self.rows],
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
    count = dist.get_world_size()
    settings = task.settings(count)
    planner = make_planner(task.captured, settings)
    context = RankContext.make([size for size, _ in settings.mesh_axes], device)
    args, kwargs = pytree.tree_map(lambda value: _share(value, task.inputs, device), batch)
    make_optimizer = options.optimizer or OPTIMIZERS[task.optimizer]
    step = StepSettings(task.optimizer, "cuda" if device.type == "cuda" else "cpu")
    rows = []
    for index in range(options.strategies):
        seed = options.seed + index
        plan = Plan.of(settings, task.captured, planner.random_strategy(seed))
        simulated = from_first_rank(partial(_simulated, plan, task.captured, step))
        module = emit.parallelize(model, task.captured, plan, device, context)
        optimizer = make_optimizer(module)
        forward = partial(module, *args, **kwargs)
        times = time_steps(module, optimizer, forward, options.steps)
        peak = peak_bytes(module, optimizer, forward)
        network_s = planner.network_time(plan.strategy())
        rows.append(
            Comparison(
                seed,
                plan.time_s,
                times.step_s,
                network_s,
                times.network_s,
                plan.memory_bytes,
                simulated,
                peak,
            )
        )
        if progress is not None:
            progress(index + 1, options.strategies)
    context.groups.close()
    return Validation(tuple(rows))


def _simulated(plan: Plan, captured: CapturedModel, step: StepSettings) -> float:
    return float(simulate_step(plan, captured, step).peak_bytes)


def _check(batch: Batch, options: ValidationOptions) -> None:
    if options.strategies < 1 or options.steps < 1:
        raise TensorOptError(
            f"{options.strategies} strategies of {options.steps} steps cannot be validated; "
            "give at least 1 of each"
        )
    for index, value in enumerate(pytree.tree_leaves(batch)):
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise TensorOptError(
                f"input {index} is on the meta device; strategies are run to validate them: give "
                "real tensors of the global batch"
            )


def _share(value: Any, inputs: str, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if inputs == "sharded" and value.dim() > 0:
        value = value.chunk(dist.get_world_size())[dist.get_rank()]
    return value.to(device)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) - 1) / 2 for value in values]
