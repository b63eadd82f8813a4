"""Measured operators: the calls that strategies of a model make, run on the real
device while all ranks are busy, as they are in training."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.frontend.lowering import memory_orders
from tensoropt_torch.measure.kept.operator_times import OpTime
from tensoropt_torch.measure.machine.clock import (
    ComputeClock,
    SharedClock,
    crowding_of,
    undisturbed_s,
)
from tensoropt_torch.measure.machine.collective_times import SMALL_SPREAD, spread
from tensoropt_torch.program.local_calls import CallSite, draws, invocation
from tensoropt_torch.progress import Step, silent
from tensoropt_torch.runtime.agreement import gather
from tensoropt_torch.runtime.ops import network_timing
from tensoropt_torch.space.local_form import LocalForm
from tensoropt_torch.space.op_records import work_record

WARM_UPS = 2
LEAST_REPEATS, REPEATS_PER_BATCH = 2, 5
MAX_BATCHES = 6
MOST_SHARE = 0.1  # of the budget, for one call, if it does not take longer in any case
SHORTEST_S = 1e-7  # what is shorter cannot be told from nothing
ENGINE_REPEATS = 50

GroupName = Callable[[int], str]


@dataclass(frozen=True)
class Pick:
    """A config of a node of the strategy space, and the key of its call."""

    node: _C.SpaceNodeId
    config: int
    key: str


@dataclass
class OperatorMeasurement:
    """What was measured, and what could not be: (key, reason)."""

    samples: list[OpTime] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


def picks_of(space: _C.SearchSpace, strategies: Iterable[_C.Strategy]) -> list[Pick]:
    """The calls that these strategies make, each once, those first that are thought
    to take the most time in all."""
    weight: defaultdict[str, float] = defaultdict(float)
    first: dict[str, Pick] = {}
    for strategy in strategies:
        for row in space.estimates(strategy):
            weight[row.key] += row.time_s
            first.setdefault(row.key, Pick(row.node, strategy.config[row.node], row.key))
    return sorted(first.values(), key=lambda pick: (-weight[pick.key], pick.key))


class OperatorProfiler:
    """Measures calls of one captured model. All methods are collective: all ranks
    measure the same calls at the same time."""

    def __init__(
        self,
        captured: CapturedModel,
        space: _C.SearchSpace,
        device: torch.device,
        group_name: GroupName,
    ) -> None:
        self._space = space
        self._site = CallSite(device, group_name)
        self._with_rule = frozenset(captured.lowering.rules.targets())
        self._clock = SharedClock(device)
        self._compute_clock = ComputeClock(device, crowding_of(device))
        by_graph_node = {number: node for node, number in captured.lowering.nodes.items()}
        self._nodes: list[fx.Node | None] = [
            by_graph_node.get(row.graph_node) for row in space.nodes()
        ]
        self._engine_s = 0.0

    def measure(
        self, picks: Sequence[Pick], budget_s: float, step: Step = silent
    ) -> OperatorMeasurement:
        """As many of the picks as the budget allows, from the first on; ``step`` is told. Of
        calls that take long there are few repetitions."""
        result = OperatorMeasurement()
        end = self._clock.elapsed_s() + budget_s
        with network_timing() as network_s:
            self._engine_s = self._engine_time()
            for pick in picks:
                self._measure_pick(pick, network_s, MOST_SHARE * budget_s, result)
                step(f"{len(result.failed)} could not run" if result.failed else None)
                if self._clock.elapsed_s() >= end:
                    break
        return result

    def axis_sets(self, pick: Pick) -> set[int]:
        """Those whose process groups the call of a pick needs."""
        return LocalForm.of(self._space.local_call(pick.node, pick.config)).axis_sets

    def _measure_pick(
        self,
        pick: Pick,
        network_s: Callable[[], float],
        share_s: float,
        result: OperatorMeasurement,
    ) -> None:
        call = self._space.local_call(pick.node, pick.config)
        run, problem = None, ""
        try:
            run = self.runnable(pick, network_s)
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            problem = str(error).partition("\n")[0]
        problems = [text for text in gather(problem) if text]
        if run is None or problems:
            result.failed.append((pick.key, problems[0]))
            return
        forward_s, backward_s = self._times(run, share_s)
        work = work_record(call.work)
        result.samples.append(OpTime(pick.key, call.family, work, forward_s, backward_s))

    def runnable(self, pick: Pick, network_s: Callable[[], float]) -> TimedCall:
        """The call with made-up tensors. Indices must exist in what they index, which the
        schema does not say: the largest bound that the call accepts is taken. All ranks
        make up the same numbers, which may say how much they exchange."""
        call = self._space.local_call(pick.node, pick.config)
        node, form = self._nodes[pick.node], LocalForm.of(call)
        assert node is not None
        number = 0 if draws(node, form, self._with_rule) else None
        device = self._site.device
        error: Exception | None = None
        for bound in _index_bounds(call, device):
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(0)
                operands = [
                    _operand(like, order, bound, device)
                    for like, order in zip(call.operands, memory_orders(node), strict=True)
                ]
            try:
                function = invocation(node, form, operands, self._site, number)
                return TimedCall(function, operands, self._compute_clock, network_s)
            except IndexError as caught:
                error = caught
        assert error is not None
        raise error

    def _times(self, run: TimedCall, share_s: float) -> tuple[float, float]:
        """Of forward and backward, means over the ranks, in about ``share_s`` seconds."""
        forward: list[float] = []
        backward: list[float] = []
        affordable = int(share_s / max(SHORTEST_S, self._clock.slowest([run.first_s])[0]))
        if affordable > WARM_UPS + REPEATS_PER_BATCH:
            for _ in range(WARM_UPS):
                run()
        repeats = max(LEAST_REPEATS, min(REPEATS_PER_BATCH, affordable))
        for _ in range(max(1, min(MAX_BATCHES, affordable // repeats))):
            if dist.is_initialized():
                dist.barrier()
            batch = [run() for _ in range(repeats)]
            forward += [times[0] for times in batch]
            backward += [times[1] for times in batch]
            if max(self._clock.slowest([spread(forward), spread(backward)])) < SMALL_SPREAD:
                break
        own = [undisturbed_s(forward), undisturbed_s(backward)]
        forward_s, backward_s = self._clock.mean(own)
        if run.has_backward:
            backward_s = max(SHORTEST_S, backward_s - self._engine_s)
        return max(SHORTEST_S, forward_s), backward_s

    def _engine_time(self) -> float:
        """Starting and ending autograd, which a step does once and a measurement of
        one call every time."""
        x = torch.ones(8, device=self._site.device, requires_grad=True)
        given = torch.ones_like(x)
        seconds = []
        for _ in range(ENGINE_REPEATS):
            y = x.view_as(x)
            start = self._compute_clock.now()
            torch.autograd.grad(y, x, given)
            seconds.append(self._compute_clock.now() - start)
        return self._clock.mean([undisturbed_s(seconds)])[0]


class TimedCall:
    """Runs a call once, forward and backward; returns the seconds of both, without
    those on the network."""

    def __init__(
        self,
        function: Callable[[], Any],
        operands: list[torch.Tensor],
        clock: ComputeClock,
        network_s: Callable[[], float],
    ) -> None:
        self._function = function
        self._leaves = [operand for operand in operands if operand.requires_grad]
        self._clock = clock
        self._network_s = network_s
        self._given: list[torch.Tensor] = []
        outputs = self._differentiable(function())
        self._given = [torch.ones_like(output) for output in outputs]
        self.has_backward = bool(self._leaves) and bool(outputs)
        began_s = time.perf_counter()
        self()
        self.first_s = time.perf_counter() - began_s

    def __call__(self) -> tuple[float, float]:
        start = self._now()
        outputs = self._differentiable(self._function())
        middle = self._now()
        if not self.has_backward:
            return middle - start, 0.0
        torch.autograd.grad(outputs, self._leaves, self._given, allow_unused=True)
        return middle - start, self._now() - middle

    def _now(self) -> float:
        return self._clock.now() - (self._network_s() if self._clock.counts_waiting else 0.0)

    @staticmethod
    def _differentiable(result: Any) -> list[torch.Tensor]:
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        return [output for output in outputs if output.requires_grad]


def _index_bounds(call: _C.LocalCall, device: torch.device) -> list[int]:
    """Bounds of integers to try. A wrong index ends a GPU's context, so that there
    only the smallest size is safe."""
    floating = [operand.shape for operand in call.operands if "float" in operand.dtype]
    sizes = sorted({size for shape in floating for size in shape} - {0}, reverse=True)
    if device.type != "cpu":
        sizes = sizes[-1:]
    return [*sizes, 1]


def _operand(
    like: _C.LocalOperand, memory_order: str, bound: int, device: torch.device
) -> torch.Tensor:
    """A tensor of this shape, type and order in memory. Positive numbers: no operator
    is slower or undefined there."""
    shape, dtype = like.shape, getattr(torch, like.dtype)
    order = [int(dim) for dim in memory_order.split(",")] if memory_order else range(len(shape))
    stored = [shape[dim] for dim in order]
    if dtype.is_floating_point or dtype.is_complex:
        tensor = (torch.rand(stored, device=device) + 0.5).to(dtype)
    elif dtype == torch.bool:
        tensor = torch.ones(stored, dtype=dtype, device=device)
    else:
        tensor = torch.randint(bound, stored, device=device).to(dtype)
    back = sorted(range(len(shape)), key=lambda position: order[position])
    return tensor.permute(back).requires_grad_(like.requires_grad)
