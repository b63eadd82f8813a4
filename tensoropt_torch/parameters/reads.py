"""What programs read of the parameters and gradients of a parallel module, as if they were whole.

PyTorch's ``DTensor`` keeps sums, maxima and norms of split tensors as parts that are still to be
put together, and takes some of them for something else, without a word: ``p.norm().item()`` is the
number of this rank's part, a sum of norms is taken before the norms are, ``any`` counts ranks, and
the gradient of a mean over elements is divided by the number of this rank's. ``know_reads`` has
them right. Only tensors on the mesh of the job are treated so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.parameters.python_reads import know_python_reads
from tensoropt_torch.parameters.whole_reads import (
    AT_POSITIONS,
    BY_NUMBERS,
    OF_PRODUCTS,
    at_positions,
    by_numbers,
    know_whole_reads,
    of_product,
)
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.runtime.stage_groups import is_mesh_of_module
from tensoropt_torch.runtime.whereabouts import board
from tensoropt_torch.values.parts import redistributed

_aten = torch.ops.aten
_INFINITE = (float("inf"), float("-inf"))
_MEAN, _SUM = 1, 2  # ATen's numbers of reductions

_SUMS = (_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim)
_WITHOUT_ORDER = (_aten.any.default, _aten.any.dim, _aten.any.dims)

# Gradients of means over all elements, and which argument is the reduction.
_OF_MEANS = {
    _aten.mse_loss_backward.default: 3,
    _aten.smooth_l1_loss_backward.default: 3,
    _aten.huber_loss_backward.default: 3,
    _aten.soft_margin_loss_backward.default: 3,
    _aten.binary_cross_entropy_backward.default: 4,
}


@functools.cache
def know_reads() -> None:
    """From now on, in this process."""
    tensors: Any = DTensor
    handlers = tensors._op_dispatcher._custom_op_handlers
    ways: dict[Callable[..., Any], tuple[Any, ...]] = {
        _number: (_aten._local_scalar_dense.default,),
        _sum_of_wholes: _SUMS,
        _whole_result: _WITHOUT_ORDER,
        _norm: (_aten.linalg_vector_norm.default,),
        **{functools.partial(_gradient_of_mean, at): (op,) for op, at in _OF_MEANS.items()},
        **{functools.partial(at_positions, op): (op,) for op in AT_POSITIONS},
        **{functools.partial(by_numbers, op): (op,) for op in BY_NUMBERS},
        **{functools.partial(of_product, op): (op,) for op in OF_PRODUCTS},
    }
    for way, operators in ways.items():
        for op in operators:
            handlers.setdefault(op, functools.partial(_ours_or_else, handlers, way))
    tensors.full_tensor = _told(tensors.full_tensor)
    know_whole_reads()
    know_python_reads()


def _told(full_tensor: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A rank that waits in it alone says so, unless it is a part of something else."""

    @functools.wraps(full_tensor)
    def call(self: DTensor, **kwargs: Any) -> torch.Tensor:
        if torch.compiler.is_compiling() or not is_mesh_of_module(self.device_mesh):
            return full_tensor(self, **kwargs)
        notes = board()
        if notes is None or notes.is_doing:
            return full_tensor(self, **kwargs)
        with doing("full_tensor or item of a parameter or gradient"):
            return full_tensor(self, **kwargs)

    return call


def _ours_or_else(
    handlers: dict[Any, Any],
    way: Callable[..., Any],
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """In place of what ``DTensor`` does for an operator; ``way`` is for tensors of the job."""

    def inherited(*args: Any, **kwargs: Any) -> Any:
        handler = handlers.pop(op)
        try:
            return op(*args, **kwargs)
        finally:
            handlers[op] = handler

    tensors = (leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, DTensor))
    if all(is_mesh_of_module(tensor.device_mesh) for tensor in tensors):
        return way(inherited, *args, **kwargs)
    return inherited(*args, **kwargs)


def _number(_: Any, tensor: DTensor) -> Any:
    return _put_together(tensor).item()


def _put_together(tensor: DTensor) -> torch.Tensor:
    if all(p.is_replicate() for p in tensor.placements):
        return tensor._local_tensor
    return tensor.full_tensor()


def _sum_of_wholes(
    inherited: Callable[..., Any], tensor: DTensor, *args: Any, **kwargs: Any
) -> Any:
    """Norms are taken first."""
    is_norm = any(type(p).__name__ == "_NormPartial" for p in tensor.placements)
    return inherited(_whole(tensor) if is_norm else tensor, *args, **kwargs)


def _whole_result(inherited: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _whole(inherited(*args, **kwargs))


def _norm(inherited: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The gradient of PyTorch for the largest element of a split tensor is no number."""
    order = kwargs.get("ord", args[1] if len(args) > 1 else 2)
    if order in _INFINITE and args[0].requires_grad and torch.is_grad_enabled():
        raise TensorOptError(
            f"a norm of order {order} of a parameter of a parallel module has no right gradient; "
            "write p.abs().amax() or amin(), which has, or p.detach() where none is wanted"
        )
    return inherited(*args, **kwargs)


def _whole(tensor: Any) -> Any:
    """The same put together, where parts are still to be."""
    if isinstance(tensor, DTensor) and any(p.is_partial() for p in tensor.placements):
        placements = [Replicate() if p.is_partial() else p for p in tensor.placements]
        return redistributed(tensor, placements)
    return tensor


def _gradient_of_mean(place: int, inherited: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """That of a sum, of which the whole number of elements is known here. The reduction is the
    argument at this place; defaults may be left out."""
    given = [*args, *(None, _MEAN)[len(args) - 3 :]] if len(args) <= place else list(args)
    if given[place] == _MEAN:
        given[0], given[place] = given[0] / given[1].numel(), _SUM
    return inherited(*given, **kwargs)
