"""The rank's part of a parameter in the graph, and the way of its gradient back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement

from tensoropt_torch.emit.placements import dtensor_of


def as_whole(
    part: torch.Tensor, parameter: DTensor, placements: Sequence[Placement] | None = None
) -> DTensor:
    """The tensor of a parameter's shape of which the rank has this part, in the parameter's
    layout or in another one. No gradient flows through it."""
    if placements is None and part.dtype == parameter.dtype:
        # What from_local makes takes ten times as long: a step has one for each gradient.
        return DTensor(part, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    layout = parameter.placements if placements is None else placements
    return dtensor_of(part, parameter.device_mesh, layout, parameter)


def local_tensor(value: Any) -> Any:
    """What the rank has of a ``DTensor``, without any gradient; all else as it is."""
    return value._local_tensor if isinstance(value, DTensor) else value


def local_part(tensor: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
    """What the rank has of a parameter, as ``DTensor.to_local``, seen in this shape; other
    tensors as they are.

    The gradient that comes back is no other parameter's as well: autograd sees to that for
    tensors, but not for what is inside of a ``DTensor``. Two parameters that are added up have
    one gradient, and what is done to it in place, such as clipping, would be done twice. It
    lies in memory as the parameter does, which fused optimizers take for granted.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        local = tensor.to_local()
        return local if shape is None else local.view(shape)
    part: torch.Tensor = _LocalPart.apply(tensor, shape)  # type: ignore[no-untyped-call]
    return part


class _LocalPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: DTensor, shape: Sequence[int] | None) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.parameter = parameter
        local = parameter._local_tensor
        part = local.view(local.shape if shape is None else shape)
        ctx.strides = part.stride()
        return part

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        if gradient is None:
            return None, None
        own = own_gradient(gradient, ctx.strides)
        return as_whole(own.view(ctx.parameter._local_tensor.shape), ctx.parameter), None


def own_gradient(gradient: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The gradient, or a copy of it, as one that is no other parameter's and has these strides."""
    if gradient.stride() == strides and _claim(gradient):
        return gradient
    own = gradient.new_empty_strided(gradient.shape, strides).copy_(gradient)
    _claim(own)
    return own


def _claim(gradient: torch.Tensor) -> bool:
    """Makes its memory that of one parameter's gradient; False if somebody else has it. How
    many have the storage does not tell: gradients that were reduced together share one, which
    therefore keeps what is taken of it."""
    if gradient._use_count() > 1:  # type: ignore[attr-defined]
        return False
    storage: Any = gradient.untyped_storage()
    start, end = _span(gradient)
    try:
        taken: list[tuple[int, int]] = storage.spans_of_gradients
    except AttributeError:
        storage.spans_of_gradients = [(start, end)]
        return True
    if any(start < other_end and other_start < end for other_start, other_end in taken):
        return False
    taken.append((start, end))
    return True


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The elements of its storage between which it lies."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return start, start + tensor.numel()
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in extents)
    return start, start + (reach + 1 if tensor.numel() else 0)
