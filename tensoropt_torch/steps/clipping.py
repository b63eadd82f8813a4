"""The norm of all gradients, with one collective.

``torch.nn.utils.clip_grad_norm_`` works with ``DTensor``s as well, and takes a collective for each
axis of the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.parameters.kept_gradients import is_kept, reduce_kept
from tensoropt_torch.parameters.local_parts import local_tensor
from tensoropt_torch.runtime.lost_ranks import doing

_copies: Any = WeakIdKeyDictionary()  # the parameters that ranks of another stage count


def mark_copy(parameter: torch.Tensor) -> None:
    """The parameter is one that an earlier stage has as well."""
    _copies[parameter] = True


@doing("clip_grad_norm_")
@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """``torch.nn.utils.clip_grad_norm_`` for the parameters of parallel modules, among which may
    be others that are equal on all ranks: the same norm and gradients up to rounding, equal on
    all ranks. Collective.

    Gradients that wait under ``no_sync`` are reduced first.

    Args:
        parameters: those whose gradients are scaled; those without a gradient are left out.
        max_norm: what the norm shall be at most.
        norm_type: p of the p-norm, above 0; may be ``math.inf``.
        error_if_nonfinite: whether a norm that is no finite number is an error, on all ranks.
        foreach: as in PyTorch: whether several tensors are changed at once; by default where
            that is faster.

    Returns:
        The norm of all gradients before, a scalar.

    Raises:
        TensorOptError: ``norm_type`` is not above 0.
        RuntimeError: on all ranks; the norm is not finite, with ``error_if_nonfinite``.
    """
    norm_type = float(norm_type)
    if not norm_type > 0:
        raise TensorOptError(f"norm_type = {norm_type} is not allowed: give a number above 0")
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    graded = [p for p in given if p.grad is not None]
    for parameter in graded:
        if is_kept(parameter):
            reduce_kept(parameter)
    gradients = [p.grad for p in graded if p.grad is not None]
    norm = norm_on_all_ranks(gradients, norm_type, error_if_nonfinite, foreach, like=given)
    parts = [nn.Parameter(local_tensor(gradient), requires_grad=False) for gradient in gradients]
    for part in parts:
        part.grad = part.data
    torch.nn.utils.clip_grads_with_norm_(parts, max_norm, norm, foreach)
    return norm


def norm_on_all_ranks(
    gradients: Sequence[torch.Tensor],
    norm_type: float,
    error_if_nonfinite: bool,
    foreach: bool | None,
    *,
    like: Sequence[torch.Tensor],
) -> torch.Tensor:
    """The norm of these gradients, or other tensors of parameters, and of what other ranks have of
    the model besides; ``like`` are some that this rank has even if it has no gradient. Collective.

    Raises:
        RuntimeError: on all ranks; the norm is not finite, with ``error_if_nonfinite``.
    """
    copies = {id(tensor) for copy in _copies for tensor in (copy, copy.grad)}
    counted = [gradient for gradient in gradients if id(gradient) not in copies]
    shared = next((tensor for tensor in like if isinstance(tensor, DTensor)), None)
    device = None if shared is None else shared.device
    dtypes = (tensor.dtype.to_real() for tensor in gradients or like)
    dtype = reduce(torch.promote_types, dtypes, torch.float32)
    norm = _total_norm(counted, norm_type, foreach, device).to(dtype)
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise RuntimeError(
            f"the {norm_type}-norm of the gradients is {float(norm)}, so they cannot be clipped; "
            "with error_if_nonfinite=False they are scaled by it all the same"
        )
    return norm


def _total_norm(
    gradients: list[torch.Tensor],
    norm_type: float,
    foreach: bool | None,
    shared_on: torch.device | None,
) -> torch.Tensor:
    """With what other ranks have, if there are parameters of which ranks have parts, on this
    device: a rank may have none whose gradient counts. A number of the widest dtype of all."""
    shared = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    alike = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
    counted = [gradient._local_tensor for gradient in shared if _is_first_of_replicas(gradient)]
    power = _power(counted, norm_type, foreach)
    is_wide: torch.Tensor | None = None
    if shared_on is not None and dist.get_world_size() > 1:
        is_wide = torch.full_like(power, any(g.dtype.to_real() == torch.float64 for g in gradients))
        both = torch.stack([power, is_wide]).to(shared_on)
        dist.all_reduce(both, dist.ReduceOp.MAX if norm_type == math.inf else dist.ReduceOp.SUM)
        power, is_wide = both.unbind()
    others = _power(alike, norm_type, foreach).to(power.device)
    if norm_type == math.inf:
        norm = torch.maximum(power, others)
    else:
        norm = (power + others) ** (1 / norm_type)
    return norm if is_wide is None else torch.where(is_wide > 0, norm, norm.float().double())


def _power(parts: list[torch.Tensor], norm_type: float, foreach: bool | None) -> torch.Tensor:
    """The norm of these parts, as it can be added up, in the same dtype on all ranks."""
    filled = [part for part in parts if part.numel() > 0]
    if not filled:
        return torch.zeros((), dtype=torch.float64, device=parts[0].device if parts else None)
    norm = torch.nn.utils.get_total_norm(filled, norm_type, False, foreach).double()
    return norm if norm_type == math.inf else norm**norm_type


def _is_first_of_replicas(gradient: DTensor) -> bool:
    """Whether the rank is the first of those that have the same part."""
    coordinate = gradient.device_mesh.get_coordinate()
    assert coordinate is not None
    return all(
        index == 0 or not placement.is_replicate()
        for index, placement in zip(coordinate, gradient.placements, strict=True)
    )
