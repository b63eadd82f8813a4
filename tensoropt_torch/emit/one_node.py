"""A call of two functions, a forward and its backward, as one node of autograd.

::

    outputs = run_as_one_node(call)    # which follow from what is trained; None: not now
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.graph import get_gradient_edge

from tensoropt_torch.emit.recorded_borders import Given
from tensoropt_torch.operators import OPS
from tensoropt_torch.parameters.local_parts import GivenGradients, is_unwatched
from tensoropt_torch.parameters.written_parts import WrittenParts, see_writes

_C: Any = torch._C
Found = Sequence[tuple[int, torch.Tensor, Sequence[int] | None]]  # numbers, tensors and views


@dataclass(frozen=True)
class Trained:
    """What a step has gradients for.

    Attributes:
        numbers: of values of the graph.
        tensors: parameters, of which the values are the rank's parts, and inputs.
        views: the shapes in which the graph takes those parts, None: as they are.
        frozen: parameters that the graph takes besides.
    """

    numbers: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    views: tuple[Sequence[int] | None, ...]
    frozen: Sequence[torch.Tensor] = ()

    @staticmethod
    def of(found: Found, frozen: Sequence[torch.Tensor] = ()) -> Trained:
        """Of these numbers, tensors and views."""
        numbers, tensors, views = zip(*found, strict=True) if found else ((), (), ())
        return Trained(numbers, tensors, views, frozen)

    def and_those(self, found: Found) -> Trained:
        """With others."""
        own = zip(self.numbers, self.tensors, self.views, strict=True)
        return Trained.of([*own, *found], self.frozen)


class NodeCall(Protocol):
    """One step, of which forward runs, and then backward.

    Attributes:
        trained: what the node has gradients for.
    """

    trained: Trained

    def forward(self) -> tuple[Sequence[torch.Tensor], Sequence[int]]:
        """The outputs, and the numbers of those without gradients."""

    def given(self, gate: torch.Tensor, given: Given) -> Given:
        """Who takes gradients in a backward; behind the gate is what is trained."""

    def backward(
        self, tangents: Sequence[torch.Tensor | None], given: Given, *, keeps: bool
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of what is trained, but for those that are ``given`` meanwhile; it may run
        again if it ``keeps`` what it needs."""


def run_as_one_node(call: NodeCall) -> Sequence[torch.Tensor] | None:
    """The outputs of forward, which follow from what is trained, of which there is some, by one
    node; None: hooks wait for gradients, which shall leave one by one."""
    trained = call.trained
    gate = OPS.leaf_gate.default(trained.tensors)
    # Hooks that were removed leave something behind, which the gate takes for one.
    if OPS.watched_leaves.default(gate) and not all(map(is_unwatched, trained.tensors)):
        return None
    written = WrittenParts(trained.frozen)
    beside = torch.empty(0, requires_grad=True)
    made: Sequence[torch.Tensor] = _OneNode.apply(call, beside, gate, written)  # type: ignore[no-untyped-call]
    return made


def freed_error() -> RuntimeError:
    """As autograd's."""
    return RuntimeError(
        "Trying to backward through the graph a second time: what forward saved is freed "
        "by then; give retain_graph=True the first time"
    )


def changed_error() -> RuntimeError:
    """As autograd's."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an "
        "inplace operation: a parameter, an input or an output of the module was changed "
        "between forward and its backward"
    )


class _OneNode(torch.autograd.Function):
    """``beside`` is a leaf as that of the node of local parts. What is trained is behind the
    ``gate``: autograd runs the nodes of leaves that are operands even if they are given nothing,
    which takes longer than to give most of them their gradients here."""

    @staticmethod
    def forward(
        ctx: Any, call: NodeCall, beside: torch.Tensor, gate: torch.Tensor, written: WrittenParts
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.step, ctx.gate, ctx.written = call, gate, written
        ctx.beside = get_gradient_edge(beside).node
        outputs, constant = call.forward()
        if constant:
            ctx.mark_non_differentiable(*[outputs[number] for number in constant])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        call: NodeCall = ctx.step
        gate: torch.Tensor = ctx.gate
        tensors, views = call.trained.tensors, call.trained.views
        ctx.written.look()
        see_writes(tensors[number] for number in OPS.written_leaves.default(gate))
        given = call.given(gate, GivenGradients(gate, ctx.beside, tensors, views))
        keeps = bool(_C._autograd._get_current_graph_task_keep_graph())
        left = call.backward(tangents, given, keeps=keeps)
        if all(gradient is None for gradient in left):
            return None, None, None, None
        OPS.pass_gate.default(gate, left)
        return None, None, torch.zeros_like(gate), None
