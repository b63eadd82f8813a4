"""Short training runs of plans on the running job, for their times and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.python_calls import hooks_silent
from tensoropt_torch.measure.machine.clock import SharedClock, undisturbed_s
from tensoropt_torch.measure.runs.batch import Batch
from tensoropt_torch.measure.runs.budget import GoesOn, OutOfTimeError, always
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.measure.runs.validation_options import MakeOptimizer
from tensoropt_torch.module import parallelize
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.stage_calls import StageVariantOptions
from tensoropt_torch.module.staged import parallelize_stages
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner.optimizer_model import OPTIMIZER_STATES, OptimizerModel
from tensoropt_torch.progress import Step, silent
from tensoropt_torch.runtime.ops import network_timing
from tensoropt_torch.simulate.stock_optimizers import make_optimizer
from tensoropt_torch.values import WeightSource

WARM_UPS = 2

# The reference: some ms of matrix products. It is calm up to this multiple of its best.
REFERENCE_WIDTH = 512
REFERENCE_PRODUCTS = 8
CALM = 1.08


def optimizer_maker(optimizer: str | OptimizerModel) -> MakeOptimizer:
    """Makes the optimizer of a module, with little steps."""
    return lambda module: make_optimizer(optimizer, module.parameters(), lr=1e-4)


# The optimizers that planning knows, as a user would make them.
OPTIMIZERS: dict[str, MakeOptimizer] = {name: optimizer_maker(name) for name in OPTIMIZER_STATES}


@dataclass(frozen=True)
class StepTimes:
    """Over steps, in s: of the whole step and of the optimizer's part
    on the slowest rank, of the network on the rank that waits least in it."""

    step_s: float
    update_s: float
    network_s: float


@dataclass(frozen=True)
class RepeatedTimes:
    """Of a plan that was run more than once.

    Attributes:
        fastest: the times of the run with the shortest step.
        spread: how much longer the longest step was, as a share of the shortest; None
            with a single run.
    """

    fastest: StepTimes
    spread: float | None

    @property
    def noise_s(self) -> float:
        """What its steps differ by, in s; 0 with a single run."""
        return (self.spread or 0.0) * self.fastest.step_s

    @staticmethod
    def of(runs: Sequence[StepTimes]) -> RepeatedTimes:
        """The runs of one plan, at least one."""
        fastest = min(runs, key=lambda times: times.step_s)
        slowest_s = max(times.step_s for times in runs)
        return RepeatedTimes(fastest, slowest_s / fastest.step_s - 1 if len(runs) > 1 else None)


class Reference:
    """A piece of work that is always the same, on all ranks at once: how fast the machine
    is at the moment."""

    def __init__(self, device: torch.device) -> None:
        self._clock = SharedClock(device)
        self._operand = torch.ones(REFERENCE_WIDTH, REFERENCE_WIDTH, device=device)

    def __call__(self) -> float:
        """Seconds on the slowest rank, equal on all. Collective."""
        if dist.is_initialized():
            dist.barrier()
        start = self._clock.now()
        for _ in range(REFERENCE_PRODUCTS):
            self._operand @ self._operand
        return self._clock.slowest([self._clock.now() - start])[0]


def run_in_passes(
    runs: Sequence[Callable[[], StepTimes]],
    passes: int,
    step: Step = silent,
    reference: Callable[[], float] = lambda: 1.0,
    goes_on: GoesOn = always,
) -> list[list[StepTimes]]:
    """Makes all the runs in turn, then all again, so that something that disturbs the
    machine for a while meets one run of a plan and not the other. Returns the times of each.

    The ``reference`` says before and after each run how long the same work takes. Those
    runs are repeated that were never made on a machine about as fast as it has been at its
    best; in as many further passes as ``passes`` at most. By default it is always as fast.
    Where it does not go on, some runs have been made less often than others, or never.
    """
    found: list[list[StepTimes]] = [[] for _ in runs]
    slowest_s = [math.inf] * len(runs)  # of the reference, around the calmest run
    best_s = math.inf
    done = 0
    for number in range(2 * passes):
        waiting = [
            index
            for index, seconds in enumerate(slowest_s)
            if number < passes or seconds > CALM * best_s
        ]
        total = passes * len(runs) if number < passes else done + len(waiting)
        for index in waiting:
            if not goes_on(0):
                return found
            before_s = reference()
            try:
                found[index].append(runs[index]())
            except OutOfTimeError:
                return found
            after_s = reference()
            best_s = min(best_s, before_s, after_s)
            slowest_s[index] = min(slowest_s[index], max(before_s, after_s))
            done += 1
            step(total=total)
    return found


@dataclass(frozen=True)
class Training:
    """What trains on this rank. Collective, as all that it does.

    Attributes:
        forward: calls the module with a batch; gives the loss, or containers in which it is
            the first tensor. Where the first is no scalar, gradients of all come back.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    forward: Callable[[], Any]

    @staticmethod
    def of(
        model: nn.Module,
        plan: Plan,
        context: RankContext,
        make_optimizer: MakeOptimizer,
        batch: Batch,
        weights: WeightSource | None = None,
    ) -> Training:
        """A plan that has its model at hand, with this rank's batch and the values of ``model``,
        or of ``weights``."""
        assert plan.captured is not None
        args, kwargs = batch
        with hooks_silent():
            module = parallelize(model, plan.captured, plan, context.device, context, weights)
        return Training(module, make_optimizer(module), partial(module, *args, **kwargs))

    @staticmethod
    def of_stages(
        model: nn.Module,
        plan: StagedPlan,
        device: torch.device,
        make_optimizer: MakeOptimizer,
        batch: Batch,
        weights: WeightSource | None = None,
    ) -> Training:
        """As ``of``, of a plan in stages, with process groups of its own."""
        assert plan.captured is not None
        args, kwargs = batch
        alone = StageVariantOptions(_no_other_calls)
        with hooks_silent():
            module = parallelize_stages(
                model,
                plan.captured,
                plan,
                device,
                weights,
                options=alone,
                check_capture=False,
                own_groups=True,
            )
        return Training(module, make_optimizer(module), partial(module, *args, **kwargs))

    def times(
        self,
        steps: int,
        *,
        warm_ups: int = WARM_UPS,
        network: bool = True,
        goes_on: GoesOn = always,
        over: Callable[[Sequence[float]], float] = undisturbed_s,
    ) -> StepTimes:
        """Trains for some steps, or as long as it goes on. Without ``network`` its time is 0;
        ``over`` gives one time of those of all steps.

        Raises:
            OutOfTimeError: it did not go on long enough for one step to be measured.
        """
        clock = SharedClock(self._device)
        rows: list[tuple[float, float, float]] = []
        with network_timing() if network else nullcontext(lambda: 0.0) as network_s:
            for index in range(warm_ups + steps):
                if not goes_on(len(rows)):
                    break
                if dist.is_initialized():
                    dist.barrier()
                times = self._timed_step(clock, network_s)
                if index >= warm_ups:
                    rows.append(times)
        if not rows:
            raise OutOfTimeError
        step_s, update_s, waited_s = zip(*rows, strict=True)
        slowest = clock.slowest([*step_s, *update_s])
        shortest = clock.slowest([-seconds for seconds in waited_s])
        return StepTimes(
            over(slowest[: len(rows)]),
            over(slowest[len(rows) :]),
            over([-seconds for seconds in shortest]),
        )

    def peak_bytes(self, inputs: Any = (), goes_on: GoesOn = always) -> float:
        """The most memory that a step takes on any rank, with the ``inputs`` that
        ``forward`` uses, counted allocation by allocation.

        Raises:
            OutOfTimeError: it did not go on long enough.
        """
        roots: list[torch.Tensor] = []

        def step() -> None:
            nonlocal roots  # as in a user's loop: the last one is there until forward is over
            roots = self._roots()
            _backward(roots)
            self._update()

        peak = measure_peak_bytes(self.module, self.optimizer, step, inputs, goes_on)
        return SharedClock(self._device).slowest([float(peak)])[0]

    def _timed_step(
        self, clock: SharedClock, network_s: Callable[[], float]
    ) -> tuple[float, float, float]:
        before = network_s()
        start = clock.now()
        _backward(self._roots())
        middle = clock.now()
        self._update()
        end = clock.now()
        return end - start, end - middle, network_s() - before

    def step(self) -> None:
        """Trains for one step."""
        _backward(self._roots())
        self._update()

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _roots(self) -> list[torch.Tensor]:
        """Where backward begins."""
        outputs = pytree.tree_leaves(self.forward())
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        return tensors[:1] if tensors[0].dim() == 0 else [t for t in tensors if t.requires_grad]

    @property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device


def _no_other_calls(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a batch is unlike the example")


def _backward(roots: list[torch.Tensor]) -> None:
    torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
