"""Gradients of parameters that are differentiated themselves (``create_graph=True``)."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tensoropt_torch.values.parts import take_part
from tensoropt_torch.values.placements import dtensor_of, is_strided


def differentiable_whole(gradient: torch.Tensor, parameter: DTensor) -> DTensor:
    """The gradient of a parameter, of which the rank has this part, seen in any shape. What
    flows back to it lies as the parameter does."""
    local = parameter._local_tensor
    part = gradient.reshape(local.shape)
    if local.is_contiguous():
        part = part.contiguous()
    whole: DTensor = _Whole.apply(part, parameter)  # type: ignore[no-untyped-call]
    return whole


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, parameter: DTensor) -> DTensor:
        ctx.mesh, ctx.placements = parameter.device_mesh, parameter.placements
        return dtensor_of(part, ctx.mesh, ctx.placements, parameter)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[torch.Tensor, None]:
        if gradient.placements == ctx.placements:
            return gradient.to_local(), None
        if is_strided(ctx.placements):
            return take_part(gradient.full_tensor(), ctx.mesh, ctx.placements), None
        return gradient.redistribute(placements=ctx.placements).to_local(), None
