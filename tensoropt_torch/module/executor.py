"""Runs steps: the lists of actions of ``program/schedule.py``, of the variants of one module.

What a step does is the list alone. An action more is a method of ``_Step`` more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch import emit
from tensoropt_torch.module.attempts import Attempt
from tensoropt_torch.module.boxed_pass import PassBorders
from tensoropt_torch.module.delivery import Waiting, delivered
from tensoropt_torch.module.gradient_sinks import PassSink, StepSink
from tensoropt_torch.module.micro_batched import seed_of
from tensoropt_torch.module.reached import ReachedGradients
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.parameters.kept_gradients import is_kept, reduce_before_adding
from tensoropt_torch.parameters.written_parts import WrittenParts
from tensoropt_torch.program.schedule import (
    ADDING,
    FORWARD,
    KEEPING,
    PLAIN,
    Action,
    Backward,
    Forward,
    Hold,
    Join,
    ReduceGradients,
    Release,
    Repeat,
    Schedule,
    in_micro_batches,
    without_gradients,
)
from tensoropt_torch.runtime.agreement import confirm_call
from tensoropt_torch.runtime.lost_ranks import waits_may_end


class Executor:
    """Chooses the schedules of steps, and runs them.

    Args:
        parameters: those of the module, in whose ``.grad`` passes may have kept gradients.
    """

    def __init__(self, parameters: Callable[[], Iterable[nn.Parameter]]) -> None:
        self._parameters = parameters
        self._keeps = False  # gradients may be kept

    def run(
        self,
        variant: Variant,
        inputs: Sequence[Any],
        seed: int,
        numbers: tuple[Any, ...],
        reduces: bool,
        attempt: Attempt | None = None,
    ) -> Any:
        """The outputs of a step for these inputs, literals included, in the containers of the
        model. With ``reduces`` its gradients get the layouts of their parameters; ``numbers``
        are what the graph takes besides; an ``attempt`` may be undone."""
        schedule = self.schedule(variant, reduces)
        if attempt is None:
            return run_schedule(schedule, variant, inputs, seed, numbers)
        attempt.begin(variant)
        with waits_may_end():
            return run_schedule(schedule, variant, inputs, seed, numbers, attempt)

    def schedule(self, variant: Variant, reduces: bool) -> Schedule:
        """What such a step does."""
        with_gradients = torch.is_grad_enabled()
        self._keeps = self._keeps or (with_gradients and not reduces)
        if variant.batch is not None:
            count = variant.batch.count
            if with_gradients and any(True for _ in variant.trained()):
                return in_micro_batches(count, reduces, reduces and self._finds_kept())
            return without_gradients(count)
        if not with_gradients:
            return FORWARD
        if not reduces:
            return KEEPING
        return ADDING if self._finds_kept() else PLAIN

    def _finds_kept(self) -> bool:
        self._keeps = self._keeps and any(is_kept(p) for p in self._parameters())
        return self._keeps


def run_schedule(
    schedule: Schedule,
    variant: Variant,
    inputs: Sequence[Any],
    seed: int,
    numbers: tuple[Any, ...] = (),
    attempt: Attempt | None = None,
) -> Any:
    """The outputs of a step that does what the schedule says."""
    rest = (numbers,) if numbers else ()
    if variant.batch is None:
        assert schedule.is_lone, schedule
        outputs = _forward_alone(schedule, variant, inputs, seed, rest, attempt)
    else:
        assert schedule.micro_batches == variant.batch.count, schedule
        confirm_call()  # what is held, and kept between micro-batches, is of a call that all make
        outputs = _Step(schedule, variant, inputs, seed, rest, attempt).run()
    return pytree.tree_unflatten(list(outputs), variant.captured.out_spec)


def _forward_alone(
    schedule: Schedule,
    variant: Variant,
    inputs: Sequence[Any],
    seed: int,
    rest: tuple[Any, ...],
    attempt: Attempt | None,
) -> Sequence[Any]:
    """The backward is that of autograd, when somebody calls it."""
    tensors = variant.own_tensors()
    if attempt is None:
        boxed = _boxed_outputs(schedule, variant, inputs, tensors, seed, *rest)
        if boxed is not None:
            return boxed
    written = WrittenParts(tensors)
    if attempt is not None:
        tensors = attempt.leaves(tensors)
    values = variant.values(inputs, tensors)
    reached = None if variant.reach is None else variant.reach.of_forward()
    forward: Callable[..., Sequence[Any]]
    if schedule.adds_kept:
        reduce_before_adding(parameter for _, parameter in variant.trained())
        forward = _forward_to_sink(schedule, variant, reached)
    else:
        forward = variant.forward if variant.whole is None else variant.whole.forward
    if reached is not None:
        values = reached.passed(values)
    with variant.registry():
        outputs = forward(*values, seed, *rest)
    written.watch(outputs)
    if reached is not None:
        reached.watch(outputs)
    return outputs


def _boxed_outputs(
    schedule: Schedule,
    variant: Variant,
    inputs: Sequence[Any],
    tensors: Sequence[torch.Tensor],
    *rest: Any,
) -> Sequence[Any] | None:
    """The outputs of one function, which sees by itself what is written to; None: there is none."""
    if schedule == PLAIN:
        outputs: Sequence[Any] | None = variant.boxed_outputs(inputs, tensors, *rest)
        return outputs
    boxed = _boxed_pass(schedule, variant, inputs, tensors, *rest) if schedule.adds_kept else None
    if boxed is not None:
        reduce_before_adding(parameter for _, parameter in variant.trained())
    return boxed


def _boxed_pass(
    schedule: Schedule,
    variant: Variant,
    inputs: Sequence[Any],
    tensors: Sequence[torch.Tensor],
    *rest: Any,
) -> Sequence[Any] | None:
    """The outputs of a pass whose gradients stay as they are, or are added to such; None: it is to
    run operator by operator."""
    boxed = variant.boxed_pass(schedule.reduces)
    if boxed is None:
        return None
    values, trained = variant.boxed_values(inputs, tensors, *rest)
    sink = PassSink(variant.hooked, variant.parameter, schedule.reduces)

    def forward(*values: Any) -> Sequence[Any]:
        found: Sequence[Any] = variant.hooked.body.forward(*values, sink)
        return found

    again = variant.again(forward, inputs, tensors, *rest)
    outputs: Sequence[Any] | None = boxed.forward(
        values, trained, again, PassBorders(sink, trained)
    )
    return outputs


def _forward_to_sink(
    schedule: Schedule, variant: Variant, reached: ReachedGradients | None
) -> Callable[..., Sequence[Any]]:
    """That of a pass whose gradients stay as they are, or are added to such."""
    sink = PassSink(variant.hooked, variant.parameter, schedule.reduces, reached)
    cut = variant.cut(False)

    def forward(*values: Any) -> Sequence[Any]:
        outputs: Sequence[Any] | None = None
        if cut is not None:
            parts, reduced = variant.by_name(values), cut.reduced
            outputs = cut.forward_to(values, (), lambda likes: sink.leaves(parts, likes, reduced))
        if outputs is None:
            outputs = variant.hooked.body.forward(*values, sink)
        return outputs

    return forward


class _Step:
    """One that runs: the graph is that of a micro-batch."""

    def __init__(
        self,
        schedule: Schedule,
        variant: Variant,
        inputs: Sequence[Any],
        seed: int,
        rest: tuple[Any, ...],
        attempt: Attempt | None,
    ) -> None:
        assert variant.batch is not None
        self._attempt = attempt
        self._schedule = schedule
        self._variant = variant
        self._batch = variant.batch
        self._seed = seed
        self._rest = rest
        self._values = variant.detached_values(inputs)
        self._outputs = self._batch.outputs()
        self._joined: list[Any] = []
        self._held: tuple[torch.Tensor, ...] = ()
        self._losses: dict[int, torch.Tensor] = {}  # of micro-batches whose backward is to come
        self._parameters: dict[str, torch.Tensor] = {}
        self._leaves: dict[str, torch.Tensor] = {}
        self._sink: StepSink | None = None
        self._cut: emit.CutGraph | None = None
        if schedule.makes_gradients:
            self._take_leaves()
            self._cut = variant.cut(schedule.reduces)

    def _take_leaves(self) -> None:
        for number, parameter in self._variant.trained():
            name = self._variant.captured.sources[number].names[0]
            self._parameters[name] = self._attempt.leaf(parameter) if self._attempt else parameter
            self._values[number] = self._leaves[name] = self._values[number].requires_grad_()
        borders = self._variant.hooked.borders
        kept = frozenset() if self._schedule.reduces else frozenset(self._leaves)
        self._sink = StepSink(borders, self._leaves, kept)

    def run(self) -> Sequence[Any]:
        """The outputs of the batch."""
        for action in self._schedule.call:
            _RUN[type(action)](self, action)
        return self._joined if self._sink is None else self._delivered(self._sink)

    def hold(self, action: Hold) -> None:
        head = self._variant.hooked.head
        if head is not None:
            with torch.no_grad():
                self._held = head.forward(*self._values, 0, *self._rest)

    def forward(self, action: Forward) -> None:
        variant, number = self._variant, action.micro_batch
        seed = seed_of(self._seed, number)
        values = self._batch.part(self._values, number)
        if self._sink is None:
            with torch.no_grad():
                made = (variant.whole or variant).forward(*values, seed, *self._rest)
        else:
            watched = [*self._sink.reduced.watched(values, self._leaves), seed]
            made = self._forward_to_sink(watched, self._sink)
            self._losses[number] = made[self._batch.loss]
        self._outputs.add(number, made)

    def _forward_to_sink(self, values: Sequence[Any], sink: StepSink) -> Sequence[Any]:
        if self._cut is not None:
            outputs: Sequence[Any] | None = self._cut.forward_to(values, self._held, sink.leaves)
            if outputs is not None:
                return outputs
        added = (*self._rest, *self._held, sink)
        with self._variant.registry():
            found: Sequence[Any] = self._variant.hooked.body.forward(*values, *added)
        return found

    def backward(self, action: Backward) -> None:
        assert self._sink is not None
        self._sink.is_last = action.reduces
        torch.autograd.backward(self._losses.pop(action.micro_batch))

    def repeat(self, action: Repeat) -> None:
        self._outputs.repeat(action.micro_batch)

    def release(self, action: Release) -> None:
        self._held, self._values = (), []

    def reduce(self, action: ReduceGradients) -> None:
        assert self._sink is not None
        self._sink.reduce(None if self._cut is None else self._cut.reduced)

    def join(self, action: Join) -> None:
        self._joined = self._outputs.joined()

    def _delivered(self, sink: StepSink) -> list[Any]:
        outputs = self._joined
        places = [
            index
            for index, output in enumerate(outputs)
            if isinstance(output, torch.Tensor) and output.is_floating_point()
        ]
        reach, loss = self._variant.reach, self._batch.loss
        gradients = [
            sink.gradient_of(name, p) if reach is None or reach.is_reached(name, loss) else None
            for name, p in self._parameters.items()
        ]
        keeps = not self._schedule.reduces
        waiting = Waiting(places.index(self._batch.loss), gradients, keeps)
        tensors = [outputs[index] for index in places]
        found = delivered(waiting, tensors, [*self._parameters.values()])
        if self._schedule.adds_kept:
            reduce_before_adding(self._parameters.values())
        for index, tensor in zip(places, found, strict=True):
            outputs[index] = tensor
        return outputs


_RUN: Mapping[type[Action], Callable[[_Step, Any], None]] = {
    Hold: _Step.hold,
    Forward: _Step.forward,
    Backward: _Step.backward,
    Repeat: _Step.repeat,
    Release: _Step.release,
    ReduceGradients: _Step.reduce,
    Join: _Step.join,
}
