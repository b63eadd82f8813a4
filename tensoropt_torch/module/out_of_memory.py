"""Steps that run out of memory are undone, and repeated under a smaller plan, on all ranks.

Forward and backward of a call run inside of one node of autograd, whose gradients are given to the
parameters when all ranks are through. So a step that fails has changed nothing but buffers, whose
values are kept, and can be repeated from the inputs of the call.

A rank whose memory has run out leaves the process groups of the step, which are of nobody else.
Ranks that wait for it there hear of that at once, and leave them as well; where forward and
backward end, all tell each other how it went, through a group of their own.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.logs import get_logger
from tensoropt_torch.module.attempts import Attempt
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.parameters.local_parts import accumulated
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import CallAgreement, from_first_rank, on_all_ranks
from tensoropt_torch.runtime.lost_ranks import WaitEndedError, lost_ranks, waits_may_end
from tensoropt_torch.units import format_costs

log = get_logger(__name__)

OnOutOfMemory = Literal["raise", "smaller"]
Phase = Literal["forward", "backward"]

# Beside torch.OutOfMemoryError: of the host's allocator, and of libraries of the device.
_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_WENT_WELL, _WAIT_ENDED, _OUT_OF_MEMORY = range(3)


class FindSmaller(Protocol):
    """Finds the next smaller plan of a model; None: there is none. On the first rank."""

    def __call__(self, plan: Plan, captured: CapturedModel) -> Plan | None: ...


@dataclass(frozen=True)
class OutOfMemory:
    """A step that was undone and repeated.

    Attributes:
        call: which call of the module, from 1.
        phase: what it was in.
        ranks: whose memory ran out.
        reason: the error of the first of them.
        before: the plan so far.
        after: the smaller one, under which the module goes on.
    """

    call: int
    phase: Phase
    ranks: tuple[int, ...]
    reason: str
    before: Plan
    after: Plan

    def __str__(self) -> str:
        """In one line."""
        costs = [format_costs(plan.memory_bytes, plan.time_s) for plan in (self.before, self.after)]
        ranks = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        return (
            f"{ranks} ran out of memory in the {self.phase} of call {self.call}, which is undone "
            f"and repeated, from {costs[0]} to {costs[1]} ({self.reason})"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory could not be allocated, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


@dataclass(frozen=True)
class Actions:
    """What a module does for its guarded calls.

    Attributes:
        run: makes an attempt of a call, given its arguments and whether the losses of ranks are
            averaged.
        seeds: what the seeds of its steps are drawn from.
        plan: that of now, with its model.
        leave: the process groups of its steps. By each rank by itself.
        move: to a plan, with groups that are new. Collective.
    """

    run: Callable[[Sequence[Any], Mapping[str, Any], bool, Attempt], Any]
    seeds: Callable[[], torch.Generator | None]
    plan: Callable[[], Plan]
    leave: Callable[[], None]
    move: Callable[[Plan], Any]


class GuardedCalls:
    """The calls of a module that are repeated under smaller plans where memory runs out.

    Args:
        agreement: of all ranks, whose group nothing else uses.

    Attributes:
        events: what has been repeated so far.
    """

    def __init__(
        self,
        smaller: FindSmaller,
        storage: ModuleStorage,
        agreement: CallAgreement,
    ) -> None:
        self.events: list[OutOfMemory] = []
        self._smaller = smaller
        self._storage = storage
        self._agreement = agreement
        self._moves = 0
        self._number = 0
        self._made: weakref.WeakSet[_Call] = weakref.WeakSet()

    def call(
        self, actions: Actions, args: Sequence[Any], kwargs: Mapping[str, Any], averages: bool
    ) -> Any:
        """What the module returns. Collective.

        Raises:
            TensorOptError: on every rank; memory ran out, and there is no smaller plan. The
                call has changed nothing.
        """
        self._number += 1
        call = _Call(self._number, actions, args, kwargs, averages, self._storage)
        outputs = self._forward(call)
        if not torch.is_grad_enabled():
            return outputs
        self._made.add(call)
        leaves, spec = pytree.tree_flatten(outputs)
        return pytree.tree_unflatten(call.guarded(leaves, self._backward), spec)

    def _forward(self, call: _Call) -> Any:
        seeds = call.actions.seeds()
        before = None if seeds is None else seeds.get_state()
        while True:
            attempt = Attempt()
            run = partial(call.actions.run, call.args, call.kwargs, call.averages, attempt)
            outputs, failure = self._tried(run, call, attempt)
            reports = self._reports(failure)
            if not reports:
                call.attempt, call.seeds, call.moves = attempt, before, self._moves
                return outputs
            outputs = None
            attempt.undo()
            if seeds is not None and before is not None:
                seeds.set_state(before)
            self._shrink(call, "forward", reports)

    def _backward(
        self, call: _Call, outer: Sequence[torch.Tensor | None], keeps_graph: bool
    ) -> None:
        """Leaves gradients at the leaves of the call."""
        if call.moves != self._moves:
            self._repeat(call)
        while True:
            call.forget_gradients()
            run = partial(call.run_backward, outer, keeps_graph)
            _, failure = self._tried(run, call, call.attempt)
            reports = self._reports(failure)
            if not reports:
                return
            self._shrink(call, "backward", reports)
            self._repeat(call)

    def _repeat(self, call: _Call) -> None:
        """Forward, whose outputs were returned before, under the plan of now."""
        on_all_ranks(call.check_unchanged)
        with call.as_it_was(call.actions.seeds()):
            outputs = self._forward(call)
        call.take_outputs(pytree.tree_leaves(outputs))

    def _tried(
        self, run: Callable[[], Any], call: _Call, attempt: Attempt
    ) -> tuple[Any, _Failure | None]:
        """What it gives, or why the step has to be undone. Then the rank has left the groups."""
        failure = None
        try:
            return run(), None
        except Exception as error:
            if isinstance(error, WaitEndedError):
                failure = _Failure(_WAIT_ENDED, error.reason)
            elif attempt.begun and is_out_of_memory(error):
                failure = _Failure(_OUT_OF_MEMORY, str(error).strip().splitlines()[0])
            else:
                raise
        # Not before the error is gone, and with it what was computed and is under way.
        self._forget()
        call.actions.leave()
        return None, failure

    def _reports(self, failure: _Failure | None) -> dict[int, str]:
        """Of the ranks whose memory ran out; nothing: all went well.

        Raises:
            LostRanksError: waits have ended, for another reason.
        """
        kind = _WENT_WELL if failure is None else failure.kind
        if self._agreement.most(kind) == _WENT_WELL:
            return {}
        reports = self._agreement.exchange(failure or _Failure(_WENT_WELL, ""))
        found = {r: f.reason for r, f in enumerate(reports) if f.kind == _OUT_OF_MEMORY}
        if not found:
            raise lost_ranks(next(report.reason for report in reports if report.reason))
        return found

    def _shrink(self, call: _Call, phase: Phase, reports: Mapping[int, str]) -> None:
        before = call.actions.plan()
        captured = before.captured
        assert captured is not None
        self._forget()
        call.actions.leave()
        self._moves += 1
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        (after,) = from_first_rank(lambda: (self._smaller(before, captured),))
        ranks, reason = tuple(reports), next(iter(reports.values()))
        if after is None:
            call.actions.move(before)
            raise TensorOptError(
                f"rank {ranks[0]} ran out of memory in the {phase} of call {call.number}, and "
                f"on_out_of_memory='smaller' finds no plan that needs less than this one, of "
                f"{format_costs(before.memory_bytes, before.time_s)}: use a smaller batch, more "
                "devices, or plan with recompute=True or max_micro_batches; nothing of the call "
                f"is left ({reason})"
            )
        call.actions.move(after)
        event = OutOfMemory(call.number, phase, ranks, reason, before, call.actions.plan())
        self.events.append(event)
        log.warning("%s", event)

    def _forget(self) -> None:
        """What calls keep for backward; they are repeated when that comes to them."""
        for call in list(self._made):
            call.forget()


@dataclass(frozen=True)
class _Failure:
    kind: int
    reason: str


class _Call:
    """A call of the module: what is needed to make it again, and its outputs until backward."""

    def __init__(
        self,
        number: int,
        actions: Actions,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        averages: bool,
        storage: ModuleStorage,
    ) -> None:
        self.number = number
        self.actions = actions
        self.averages = averages
        self.attempt = Attempt()
        self.seeds: torch.Tensor | None = None  # the state that its seed was drawn from
        self.moves = 0  # how many there were when the graph of its outputs was made
        self._storage = storage
        self._steps = storage.steps
        self._modes = [(module, module.training) for module in storage.root.modules()]
        self._autocast = current_autocast()
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self._given = [v for v in leaves if isinstance(v, torch.Tensor)]
        self._versions = [_version(tensor) for tensor in self._given]
        self._inputs: list[torch.Tensor] = []  # that have gradients
        self._input_leaves: list[torch.Tensor] = []
        if torch.is_grad_enabled():
            leaves = [self._leaf(value) for value in leaves]
        self.args, self.kwargs = pytree.tree_unflatten(leaves, spec)
        self._places: list[int] = []
        self._outputs: list[torch.Tensor] = []

    def _leaf(self, value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.requires_grad):
            return value
        self._inputs.append(value)
        self._input_leaves.append(value.detach().requires_grad_())
        return self._input_leaves[-1]

    def guarded(self, leaves: Sequence[Any], backward: Backward) -> list[Any]:
        """The outputs of the call, whose backward is ``backward``."""
        self._places = [
            index
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        self.take_outputs(leaves)
        if not self._outputs:
            return list(leaves)
        parameters = [p for p in self._storage.parameters() if p.requires_grad]
        step = _Step(self, backward, self._inputs, parameters)
        found = _Guarded.apply(step, self._outputs, *self._inputs, *parameters)  # type: ignore[no-untyped-call]
        outputs = list(leaves)
        for index, tensor in zip(self._places, found, strict=True):
            outputs[index] = tensor
        return outputs

    def take_outputs(self, leaves: Sequence[Any]) -> None:
        """Those that have gradients, of a run of the call."""
        self._outputs = [leaves[index] for index in self._places]

    def run_backward(self, outer: Sequence[torch.Tensor | None], keeps_graph: bool) -> None:
        """Gradients end at leaves, given those of the outputs."""
        pairs = [
            (output, gradient)
            for output, gradient in zip(self._outputs, outer, strict=True)
            if gradient is not None
        ]
        if not pairs:
            return
        with waits_may_end():
            outputs, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(outputs, gradients, retain_graph=keeps_graph)

    def gradients(self, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor | None]:
        """Those of the inputs that have some, and of the parameters; once."""
        found = [leaf.grad for leaf in self._input_leaves]
        found += [self.attempt.take_gradient(parameter) for parameter in parameters]
        self.forget_gradients()
        return found

    def forget_gradients(self) -> None:
        """Those of a backward that failed are no part of the next one's."""
        for leaf in self._input_leaves:
            leaf.grad = None
        self.attempt.forget_gradients()

    def forget(self) -> None:
        """What is kept for backward."""
        self._outputs = []
        self.forget_gradients()

    def check_unchanged(self) -> None:
        """Raises TensorOptError if the call would not be what it was."""
        if self._steps != self._storage.steps:
            raise TensorOptError(
                f"an optimizer made a step between call {self.number} and its backward, so that "
                "the call cannot be repeated for it under a smaller plan; call the module again"
            )
        for tensor, version in zip(self._given, self._versions, strict=True):
            if _version(tensor) != version:
                raise TensorOptError(
                    f"an input of call {self.number}, of shape {tuple(tensor.shape)}, was written "
                    "to before its backward, so that the call cannot be repeated under a smaller "
                    "plan; give the module a tensor of its own (clone())"
                )

    @contextmanager
    def as_it_was(self, seeds: torch.Generator | None) -> Iterator[None]:
        """Inside, a run of the call is what it was: in modes, casts, values of buffers and random
        numbers. Afterwards all is as it is now."""
        modes = [(module, module.training) for module in self._storage.root.modules()]
        state = None if seeds is None else seeds.get_state()
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(autocast_off(current_autocast()))
            for device, dtype in self._autocast:
                stack.enter_context(torch.autocast(device, dtype))
            stack.enter_context(self.attempt.buffers_before())
            _set_modes(self._modes)
            if seeds is not None and self.seeds is not None:
                seeds.set_state(self.seeds)
            try:
                yield
            finally:
                _set_modes(modes)
                if seeds is not None and state is not None:
                    seeds.set_state(state)


Backward = Callable[[_Call, Sequence[torch.Tensor | None], bool], None]


@dataclass(frozen=True)
class _Step:
    """What the node of a call has for its backward."""

    call: _Call
    backward: Backward
    inputs: Sequence[torch.Tensor]
    parameters: Sequence[nn.Parameter]


class _Guarded(torch.autograd.Function):
    """The outputs of a call, whose backward runs that of the call inside."""

    @staticmethod
    def forward(
        ctx: Any, step: _Step, outputs: Sequence[torch.Tensor], *operands: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.step = step
        return tuple(output.detach() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise TensorOptError(
                "with on_out_of_memory='smaller' gradients cannot be differentiated "
                "(create_graph=True); leave it out"
            )
        step: _Step = ctx.step
        step.backward(step.call, outer, torch._C._autograd._get_current_graph_task_keep_graph())
        found = step.call.gradients(step.parameters)
        inputs, own = found[: len(step.inputs)], found[len(step.inputs) :]
        return (None, None, *inputs, *accumulated(ctx, step.parameters, own))


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _set_modes(modes: Sequence[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training
