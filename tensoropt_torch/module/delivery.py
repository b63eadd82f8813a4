"""Outputs of a step whose gradients were made with them, and wait for ``backward``, or are made
there.

It multiplies those that wait with the gradient of the loss, and gives them to the parameters. So
whoever calls it, once, gets what a loss of the whole batch gives, hooks of parameters,
``torch.autograd.grad`` and scaled losses included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.parameters.kept_gradients import keep, reduced
from tensoropt_torch.parameters.local_parts import accumulated, is_for_grad, local_tensor


class Owed(Protocol):
    """What parameters get when backward comes to the outputs.

    Attributes:
        keeps: gradients become ``.grad`` as they are, where that may be; others are reduced then.
    """

    keeps: bool

    def made(self, outer: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """By parameter, for the gradients of the outputs; None: no output has one."""


@dataclass
class Waiting:
    """Gradients that wait.

    Attributes:
        loss: which of the outputs is differentiated.
        gradients: by parameter, in the layout of the parameter; or, if it ``keeps`` them, in
            those in which they are made.
        keeps: see ``Owed``.
    """

    loss: int
    gradients: list[torch.Tensor | None] | None
    keeps: bool = False

    def made(self, outer: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """See ``Owed``."""
        factor = outer[self.loss]
        if any(g is not None for i, g in enumerate(outer) if i != self.loss):
            raise TensorOptError(
                "with micro-batches only the loss that the model returns has gradients, but "
                "something was computed with another output and differentiated: let the model "
                "(or loss_fn) compute it as a part of its loss, or plan with max_micro_batches=1; "
                "in stages find_stages(schedule='gpipe') allows it"
            )
        if factor is None:
            return None
        _check_once()
        gradients = self._take()
        found = [local_tensor(gradient) for gradient in gradients if gradient is not None]
        if found and not _is_one(factor):
            torch._foreach_mul_(found, factor)
        return gradients

    def _take(self) -> list[torch.Tensor | None]:
        """Once."""
        if self.gradients is None:
            raise TensorOptError(
                "backward runs a second time for one forward; the gradients of its micro-batches "
                "were made once: call the module again, or plan with max_micro_batches=1"
            )
        gradients, self.gradients = self.gradients, None
        return gradients


@dataclass
class Deferred:
    """Gradients that are made when backward comes to the outputs.

    Attributes:
        run: makes them, for the gradients of the outputs.
        keeps: see ``Owed``.
    """

    run: Callable[[Sequence[torch.Tensor | None]], list[torch.Tensor | None]] | None
    keeps: bool = False

    def made(self, outer: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None] | None:
        """See ``Owed``."""
        if all(gradient is None for gradient in outer):
            return None
        _check_once()
        if self.run is None:
            raise TensorOptError(
                "backward runs a second time for one forward, whose activations are gone; call "
                "the module again"
            )
        run, self.run = self.run, None
        with autocast_off(current_autocast()):
            return run(outer)


def _is_one(factor: torch.Tensor) -> bool:
    """Whether it changes nothing, as of a loss that is differentiated by itself; where it is known
    without waiting."""
    is_there = factor.device.type == "cpu" and torch._C._len_torch_dispatch_stack() == 0
    return is_there and factor.item() == 1.0


def _check_once() -> None:
    """Raises TensorOptError for gradients of gradients."""
    if torch.is_grad_enabled():
        raise TensorOptError(
            "with micro-batches, and in stages, gradients cannot be differentiated "
            "(create_graph=True); plan with max_micro_batches=1 and without stages"
        )


def delivered(
    waiting: Owed, outputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The outputs, whose backward gives the parameters the gradients that wait for them."""
    found: Sequence[torch.Tensor] = _Delivery.apply(waiting, outputs, *parameters)  # type: ignore[no-untyped-call]
    return found


class _Delivery(torch.autograd.Function):
    """The outputs are no inputs of it, and so no views, which may not be changed in place
    (``loss *= scale``)."""

    @staticmethod
    def forward(
        ctx: Any, waiting: Owed, outputs: Sequence[torch.Tensor], *parameters: torch.Tensor
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.waiting = waiting
        ctx.parameters = parameters
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor | None) -> Any:
        gradients = ctx.waiting.made(outer)
        if gradients is None:
            return (None,) * len(ctx.needs_input_grad)
        for i, (parameter, (accumulate, _)) in enumerate(
            zip(ctx.parameters, ctx.next_functions, strict=True)
        ):
            if ctx.waiting.keeps:
                gradients[i] = _unless_kept(parameter, gradients[i], accumulate)
        return (None, None, *accumulated(ctx, ctx.parameters, gradients))


def _unless_kept(
    parameter: torch.Tensor, gradient: torch.Tensor | None, accumulate: Any
) -> torch.Tensor | None:
    """The gradient, reduced, unless it is kept as it is."""
    if not isinstance(gradient, DTensor):
        return gradient
    assert isinstance(parameter, DTensor)
    if gradient.placements == parameter.placements:
        return gradient
    if is_for_grad(gradient, parameter, accumulate) and keep(
        parameter, local_tensor(gradient), gradient.placements, copy=False
    ):
        return None
    return reduced(gradient, parameter)
