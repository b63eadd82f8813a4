"""Gradients in ``.grad`` that the ranks have not reduced yet.

A pass that does not reduce gradients leaves them as the parameter's consumer makes them: as a
``DTensor`` in the layout that they have there, mostly with pending sums, instead of that of the
parameter. So ``.grad`` is a right gradient at any time, whatever is done with it: set to None
or to zero, scaled, read, or given to an optimizer. Communication is all that is put off.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement

from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.values.parts import redistributed
from tensoropt_torch.values.placements import dtensor_of


def is_kept(parameter: torch.Tensor) -> bool:
    """Whether the gradient is in another layout than its parameter."""
    return (
        isinstance(parameter, DTensor)
        and isinstance(parameter.grad, DTensor)
        and parameter.grad.placements != parameter.placements
    )


def is_executed(accumulate: Any) -> bool:
    """Whether the backward that runs executes the node that adds to a ``.grad``."""
    try:
        return bool(torch._C._will_engine_execute_node(accumulate))
    except RuntimeError:  # raised for leaves in torch.autograd.grad
        return False


def reduce_found(parameter: torch.Tensor, accumulate: Any) -> None:
    """What earlier passes have kept, if this backward adds to it; ``accumulate`` is the node that
    would."""
    if is_kept(parameter) and is_executed(accumulate):
        reduce_kept(parameter)


def reduce_before_adding(parameters: Iterable[torch.Tensor]) -> None:
    """What is kept when backward has gradients for the ``.grad`` of these parameters, whoever
    makes them. To be called once they are in the graph of a pass."""
    for parameter in parameters:
        accumulate = torch.autograd.graph.get_gradient_edge(parameter).node
        accumulate.register_prehook(functools.partial(_reduce_before, parameter))


def _reduce_before(parameter: torch.Tensor, gradients: tuple[torch.Tensor | None, ...]) -> None:
    if gradients[0] is not None and is_kept(parameter):
        reduce_kept(parameter)


def reduce_kept(parameter: torch.Tensor) -> None:
    """What is kept, by itself."""
    assert isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor)
    parameter.grad = reduced(parameter.grad, parameter)


def reduced(gradient: DTensor, parameter: DTensor) -> DTensor:
    """A gradient in the layout of its parameter. Collective if it is in another one."""
    with torch.no_grad(), waiting():
        return redistributed(gradient, parameter.placements)


def keep(
    parameter: nn.Parameter | DTensor,
    gradient: torch.Tensor,
    placements: Sequence[Placement],
    *,
    copy: bool = True,
) -> bool:
    """Adds the rank's part to what is kept, in the parameter's dtype; whether the gradient needs
    no program any more. What was reduced before, and not set to None, is no place for it.
    Without ``copy`` the part, which nobody else has, may become what is kept."""
    kept = parameter.grad
    if kept is None:
        assert isinstance(parameter, DTensor)
        contiguous = torch.contiguous_format
        mine = gradient.to(parameter.dtype, memory_format=contiguous, copy=copy)
        parameter.grad = dtensor_of(mine, parameter.device_mesh, placements, parameter)
        return True
    if not lies_at(kept, placements):
        return False
    kept.to_local().add_(gradient)
    return True


def with_kept(
    parameter: torch.Tensor, gradient: torch.Tensor, placements: Sequence[Placement]
) -> torch.Tensor | None:
    """The gradient with what was kept of earlier passes, which ``.grad`` loses. None if that
    is of another dtype, which a hook may not change: then ``.grad`` has got all, reduced."""
    kept = parameter.grad
    if not lies_at(kept, placements):
        return gradient
    total: torch.Tensor = kept.to_local().view_as(gradient).add_(gradient)
    if total.dtype != gradient.dtype:
        reduce_kept(parameter)
        return None
    parameter.grad = None
    return total


def lies_at(kept: torch.Tensor | None, placements: Sequence[Placement]) -> TypeGuard[DTensor]:
    """Whether something is kept with these placements."""
    return isinstance(kept, DTensor) and kept.placements == tuple(placements)
