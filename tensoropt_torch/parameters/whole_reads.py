"""Operators that PyTorch's ``DTensor`` has no way for, on parameters and gradients of a parallel
module: they run on the whole of what they are given, alike on all ranks.

Collective, with memory for the whole tensors. Views are copies so; writes to them are refused
(``writes.py``). What draws random numbers is refused, and so are plain tensors beside parameters,
of which nobody knows whether they are parts, but for positions that are equal on all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.digests import digest_of
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.runtime.stage_groups import gather_on_mesh, is_mesh_of_module
from tensoropt_torch.values.parts import take_part
from tensoropt_torch.values.placements import dtensor_of

_aten = torch.ops.aten

# Operators that are given positions beside a tensor, and their gradients.
AT_POSITIONS = (
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
    _aten.index_select.default,
    _aten.index_add.default,
    _aten.index_add_.default,
    _aten.embedding.default,
    _aten.embedding_dense_backward.default,
    _aten.gather.default,
    _aten.scatter_add.default,
    _aten.take.default,
    _aten.put.default,
    _aten.masked_select.default,
    _aten.masked_scatter.default,
)

# Operators whose results DTensor gives the shape of an earlier call with another number.
BY_NUMBERS = (_aten.topk.default, _aten.histc.default)

# Operators that mix a parameter with what else is computed.
OF_PRODUCTS = (
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.mv.default,
    _aten.dot.default,
    _aten.where.self,
    _aten.cat.default,
    _aten.stack.default,
)

# Where DTensor finds out that it has no way; versions that have another name keep their error.
_WITHOUT_WAY = "_propagate_op_sharding_dispatch_slow_path"


@functools.cache
def know_whole_reads() -> None:
    """From now on, in this process."""
    dispatcher: Any = DTensor._op_dispatcher
    inherited = getattr(dispatcher, _WITHOUT_WAY, None)
    if inherited is not None:
        setattr(dispatcher, _WITHOUT_WAY, _or_whole(inherited))


def _or_whole(inherited: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inherited)
    def call(op: Any, args: Any, kwargs: Any, *others: Any, **named: Any) -> Any:
        try:
            return inherited(op, args, kwargs, *others, **named)
        except (NotImplementedError, RuntimeError) as error:
            if op._schema.is_mutable or not _are_of_job(args, kwargs):
                raise
            if torch.Tag.nondeterministic_seeded in op.tags:
                _refuse(op, error)
        return run_whole(op, args, kwargs)

    return call


def at_positions(op: Any, inherited: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An operator of ``AT_POSITIONS``, as ``DTensor`` does it, or else on the whole."""
    plain = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_plain(leaf)]
    if not plain and not op._schema.is_mutable:
        return inherited(*args, **kwargs)
    if op._schema.is_mutable:
        return _written(op, args, kwargs)
    return run_whole(op, args, kwargs)


def by_numbers(op: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator of ``BY_NUMBERS``."""
    return run_whole(op, args, kwargs)


def of_product(op: Any, inherited: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An operator of ``OF_PRODUCTS``.

    Raises:
        TensorOptError: on every rank; it is given a plain tensor besides.
    """
    check_not_beside(_name(op), *args)
    return inherited(*args, **kwargs)


def check_not_beside(name: str, *operands: Any) -> None:
    """Raises TensorOptError where a plain tensor that is no number is among the operands."""
    for operand in pytree.tree_leaves(operands):
        if _is_plain(operand) and operand.numel() != 1:
            raise TensorOptError(
                f"{name} of a parameter or gradient of a parallel module and a tensor "
                f"{tuple(operand.shape)} that is none: a rank may have a part of either; compute "
                "with the whole, alike on all ranks, w = p.full_tensor(), or inside of the model"
            )


@doing("an operator on a whole parameter or gradient")
def run_whole(op: Any, args: Any, kwargs: Any) -> Any:
    """What it gives in one process, whole on every rank.

    Raises:
        TensorOptError: on every rank; a tensor beside parameters differs between ranks.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    mesh = next(leaf.device_mesh for leaf in leaves if isinstance(leaf, DTensor))
    _check_equal(op, [leaf for leaf in leaves if _is_plain(leaf)], mesh)
    args, kwargs = pytree.tree_map_only(DTensor, lambda t: t.full_tensor(), (args, kwargs))
    placements = [Replicate()] * mesh.ndim
    return pytree.tree_map_only(
        torch.Tensor, lambda t: dtensor_of(t, mesh, placements, t), op(*args, **kwargs)
    )


def _written(op: Any, args: Any, kwargs: Any) -> DTensor:
    """As ``run_whole``, of one that writes into its first argument."""
    own, *others = args
    if not isinstance(own, DTensor) or any(p.is_partial() for p in own.placements):
        _refuse(op, None)
    whole: DTensor = run_whole(op, (_copy_of_whole(own), *others), kwargs)
    local = take_part(whole.to_local(), own.device_mesh, own.placements)
    own._local_tensor.copy_(local)
    return own


def _copy_of_whole(tensor: DTensor) -> DTensor:
    whole = tensor.full_tensor().clone()
    return dtensor_of(whole, tensor.device_mesh, [Replicate()] * tensor.device_mesh.ndim, whole)


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, DTensor)


def _are_of_job(*values: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, DTensor)]
    return bool(tensors) and all(
        is_mesh_of_module(tensor.device_mesh) and not tensor._local_tensor.is_meta
        for tensor in tensors
    )


def _check_equal(op: Any, tensors: list[torch.Tensor], mesh: DeviceMesh) -> None:
    if not tensors:
        return
    of_ranks = gather_on_mesh([int(digest_of(tensor)) for tensor in tensors], mesh)
    for rank, found in enumerate(of_ranks):
        if found != of_ranks[0]:
            raise TensorOptError(
                f"{_name(op)} of a parameter of a parallel module is given another tensor beside "
                f"it on rank {rank} than on rank 0; give the same on all ranks, or compute with "
                "p.full_tensor(), or inside of the model"
            )


def _refuse(op: Any, error: Exception | None) -> NoReturn:
    reason = f" ({str(error).splitlines()[0]})" if error is not None and str(error) else ""
    raise TensorOptError(
        f"{_name(op)} of a parameter or gradient of a parallel module is not supported with these "
        f"arguments{reason}; compute with the whole, alike on all ranks: w = p.full_tensor()"
    ) from error


def _name(op: Any) -> str:
    return str(op._schema.name.split("::")[-1].strip("_"))
