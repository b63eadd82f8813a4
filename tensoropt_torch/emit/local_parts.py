"""The rank's part of a parameter in the graph, and the way of its gradient back."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What the rank has of a parameter, as ``DTensor.to_local``; other tensors as they are.

    The gradient that comes back is no other parameter's as well: autograd sees to that for
    tensors, but not for what is inside of a ``DTensor``. Two parameters that are added up have
    one gradient, and what is done to it in place, such as clipping, would be done twice. It
    lies in memory as the parameter does, which fused optimizers take for granted.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor.to_local()
    part: torch.Tensor = _LocalPart.apply(tensor)  # type: ignore[no-untyped-call]
    return part


class _LocalPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: DTensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.layout = parameter.device_mesh, parameter.placements
        ctx.whole = parameter.shape, parameter.stride()
        local = parameter._local_tensor
        ctx.strides = local.stride()
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None:
            return None
        shape, stride = ctx.whole
        own = gradient
        if _has_owner(gradient) or gradient.stride() != ctx.strides:
            own = gradient.new_empty_strided(gradient.shape, ctx.strides).copy_(gradient)
        own.untyped_storage().of_gradient = True  # type: ignore[attr-defined]
        return DTensor.from_local(own, *ctx.layout, run_check=False, shape=shape, stride=stride)


def _has_owner(gradient: torch.Tensor) -> bool:
    """Whether somebody else has it, or a parameter has its memory. How many have the memory
    does not tell: threads of a process group let go of it at some time after the end."""
    references: int = gradient._use_count()  # type: ignore[attr-defined]
    return references > 1 or hasattr(gradient.untyped_storage(), "of_gradient")
