"""A call of two functions, a forward and its backward, as one node of autograd.

::

    outputs = run_as_one_node(call)    # which follow from what is trained
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.graph import get_gradient_edge

from tensoropt_torch.emit.recorded_borders import Given
from tensoropt_torch.parameters.local_parts import GivenGradients

_C: Any = torch._C


@dataclass(frozen=True)
class Trained:
    """What a step has gradients for.

    Attributes:
        numbers: of values of the graph.
        tensors: parameters, of which the values are the rank's parts, and inputs.
        views: the shapes in which the graph takes those parts, None: as they are.
    """

    numbers: tuple[int, ...]
    tensors: tuple[torch.Tensor, ...]
    views: tuple[Sequence[int] | None, ...]

    @staticmethod
    def of(found: Sequence[tuple[int, torch.Tensor, Sequence[int] | None]]) -> Trained:
        """Of these numbers, tensors and views."""
        return Trained(*zip(*found, strict=True)) if found else Trained((), (), ())


class NodeCall(Protocol):
    """One step, of which forward runs, and then backward.

    Attributes:
        trained: what the node has gradients for.
    """

    trained: Trained

    def forward(self) -> tuple[Sequence[torch.Tensor], Sequence[int]]:
        """The outputs, and the numbers of those without gradients."""

    def given(self, node: Any, given: Given) -> Given:
        """Who takes gradients in a backward of this node."""

    def backward(
        self, tangents: Sequence[torch.Tensor | None], given: Given, *, keeps: bool
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of what is trained, but for those that are ``given`` meanwhile; it may run
        again if it ``keeps`` what it needs."""


def run_as_one_node(call: NodeCall) -> Sequence[torch.Tensor]:
    """The outputs of forward, which follow from what is trained by one node."""
    beside = torch.empty(0, requires_grad=True)
    made: Sequence[torch.Tensor] = _OneNode.apply(call, beside, *call.trained.tensors)  # type: ignore[no-untyped-call]
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
    """``beside`` is a leaf as that of the node of local parts."""

    @staticmethod
    def forward(
        ctx: Any, call: NodeCall, beside: torch.Tensor, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.step, ctx.beside = call, get_gradient_edge(beside).node
        outputs, constant = call.forward()
        if constant:
            ctx.mark_non_differentiable(*[outputs[number] for number in constant])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        call: NodeCall = ctx.step
        tensors, views = call.trained.tensors, call.trained.views
        given = call.given(ctx, GivenGradients(ctx, ctx.beside, tensors, views))
        keeps = bool(_C._autograd._get_current_graph_task_keep_graph())
        return None, None, *call.backward(tangents, given, keeps=keeps)
