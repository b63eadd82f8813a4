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
        _spans_of_gradients(own).append(_span(own))
        return DTensor.from_local(own, *ctx.layout, run_check=False, shape=shape, stride=stride)


def _has_owner(gradient: torch.Tensor) -> bool:
    """Whether somebody else has it, or a parameter has its memory. How many have the memory
    does not tell: gradients that were reduced together share a storage."""
    references: int = gradient._use_count()  # type: ignore[attr-defined]
    start, end = _span(gradient)
    return references > 1 or any(
        start < other_end and other_start < end
        for other_start, other_end in _spans_of_gradients(gradient)
    )


def _spans_of_gradients(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """What parameters have of a tensor's storage, kept as long as that is."""
    storage: Any = tensor.untyped_storage()
    if not hasattr(storage, "spans_of_gradients"):
        storage.spans_of_gradients = []
    spans: list[tuple[int, int]] = storage.spans_of_gradients
    return spans


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The elements of its storage between which it lies."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in extents)
    start = int(tensor.storage_offset())
    return start, start + (reach + 1 if tensor.numel() else 0)
