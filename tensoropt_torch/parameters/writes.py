"""What programs write into the parameters of a parallel module, as if they were whole.

PyTorch's ``DTensor`` takes some of it for something else, without a word: ``p.data = x`` changes
nothing; random numbers of each part are drawn by themselves, so that parts are alike and others
than those of the whole; ``torch.eye(out=p)`` puts a whole tensor in place of a part; and what is
written through a view that had to be gathered, ``p[0].zero_()``, is lost. ``know_writes`` has the
first ones done as one process does them, and the last refused.

Only tensors on the mesh of the job are treated so; other ``DTensor``s go the way that they went.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.parameters.pickles import know_pickles
from tensoropt_torch.parameters.reads import know_reads
from tensoropt_torch.parameters.whole_writes import write_whole
from tensoropt_torch.parameters.written_parts import know_writes_of_several
from tensoropt_torch.runtime.remade import count_write_without_version
from tensoropt_torch.runtime.stage_groups import is_mesh_of_module
from tensoropt_torch.values.parts import redistributed, take_part
from tensoropt_torch.values.placements import dtensor_of

MIXED = "mixed torch.Tensor and DTensor"  # in PyTorch's words for it

_aten = torch.ops.aten

# Operators that draw, or write, numbers for a tensor as a whole.
_WHOLE = (
    _aten.normal_.default,
    _aten.uniform_.default,
    _aten.exponential_.default,
    _aten.cauchy_.default,
    _aten.geometric_.default,
    _aten.log_normal_.default,
    _aten.random_.default,
    _aten.random_.to,
    getattr(_aten.random_, "from"),
    _aten.bernoulli_.float,
    _aten.bernoulli_.Tensor,
    _aten.bernoulli.default,
    _aten.bernoulli.p,
    _aten.rand_like.default,
    _aten.randn_like.default,
    _aten.randint_like.default,
    _aten.randint_like.low_dtype,
    _aten.eye.out,
    _aten.eye.m_out,
)

# Methods that DTensors do not have, whose writes are those into the whole.
_BY_WHOLE = ("fill_diagonal_", "renorm_")
# Of ``p.data += x`` and its like. ``p[0] += x`` sets the item afterwards.
_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__imod__")


def know_parameters() -> None:
    """From now on what is written through views is not lost, and what is read is the whole."""
    know_writes()
    know_reads()
    know_pickles()


@functools.cache
def know_writes() -> None:
    """From now on, in this process."""
    know_writes_of_several()
    tensors: Any = DTensor
    handlers = tensors._op_dispatcher._custom_op_handlers
    for op in _WHOLE:
        handlers.setdefault(op, functools.partial(_whole_or_else, handlers))
    inherited: Any = torch.Tensor.data
    tensors.data = property(inherited.__get__, functools.partial(_set_data, inherited.__set__))
    for name in dir(torch.Tensor):
        if name.endswith("_") and not name.startswith("_"):
            setattr(tensors, name, _checked(getattr(tensors, name)))
    for name in _IN_PLACE:
        setattr(tensors, name, _counted(getattr(tensors, name)))
    tensors.copy_ = _of_whole(tensors.copy_)
    tensors.__setitem__ = _item_set(tensors.__setitem__)
    for name in _BY_WHOLE:
        setattr(tensors, name, _by_whole(getattr(tensors, name)))


def _is_ours(value: Any) -> bool:
    return (
        isinstance(value, DTensor)
        and is_mesh_of_module(value.device_mesh)
        and not any(placement.is_partial() for placement in value.placements)
    )


def _whole_or_else(
    handlers: dict[Any, Any], op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """In place of what ``DTensor`` does for an operator."""
    own = kwargs["out"] if "out" in kwargs else args[0]
    if _is_ours(own) and not own.is_meta:
        return write_whole(op, own, args, kwargs)
    handler = handlers.pop(op)
    try:
        return op(*args, **kwargs)
    finally:
        handlers[op] = handler


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that writes: not where it would be lost."""

    @functools.wraps(method)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        _check_not_lost(tensor, method.__name__)
        try:
            count_write_without_version(tensor._local_tensor)
            return method(tensor, *args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            unknown = isinstance(error, NotImplementedError) or MIXED in str(error)
            if not unknown or not _is_ours(tensor):
                raise
            raise TensorOptError(
                f"{method.__name__} of a parameter of a parallel module is not supported with "
                f"these arguments ({str(error).splitlines()[0]}); change the whole instead, alike "
                "on all ranks: w = p.full_tensor(), then p.copy_(w) under torch.no_grad()"
            ) from error

    return call


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that writes, maybe to what has a version of its own."""

    @functools.wraps(method)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        count_write_without_version(tensor._local_tensor)
        return method(tensor, *args, **kwargs)

    return call


def _check_not_lost(tensor: DTensor, name: str) -> None:
    base: Any = tensor._base
    if not isinstance(base, DTensor) or not is_mesh_of_module(base.device_mesh):
        return
    memory = base._local_tensor.untyped_storage()
    if tensor._local_tensor.untyped_storage().data_ptr() != memory.data_ptr():
        raise TensorOptError(
            f"{name} on a view of a parameter or gradient that is split: the view of shape "
            f"{tuple(tensor.shape)} was gathered from its parts, of shape {tuple(base.shape)}, and "
            "what is written to it would be lost; assign by an index, p[...] = values, or change "
            "the whole: w = p.full_tensor(), then p.copy_(w)"
        )


def _set_data(inherited: Callable[..., Any], tensor: DTensor, value: torch.Tensor) -> None:
    """``p.data = x``: this rank's part of it. A ``DTensor`` in the layout of ``p`` shares its
    memory afterwards, as in one process; what else is given is copied."""
    if not _is_ours(tensor):
        inherited(tensor, value)
        return
    if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (
        tensor.shape,
        tensor.dtype,
    ):
        what = (
            f"{tuple(value.shape)} in {value.dtype}" if isinstance(value, torch.Tensor) else value
        )
        raise TensorOptError(
            f".data of a parameter of a parallel module was set to {what}; it is "
            f"{tuple(tensor.shape)} in {tensor.dtype}, which the plan fixes: give a tensor of that "
            "shape and dtype"
        )
    mesh, placements = tensor.device_mesh, tensor.placements
    if isinstance(value, DTensor) and value.device_mesh == mesh:
        with torch.no_grad():
            local = redistributed(value, placements)._local_tensor.detach()
    else:
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        local = torch.empty_like(tensor._local_tensor)
        local.copy_(take_part(whole.detach(), mesh, placements))
    tensor._local_tensor = local


def _of_whole(method: Callable[..., Any]) -> Callable[..., Any]:
    """``copy_``, of whole tensors as well."""

    @functools.wraps(method)
    def copy_(tensor: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        plain = isinstance(other, torch.Tensor) and not isinstance(other, DTensor)
        if plain and _is_ours(tensor) and not other.requires_grad:
            whole = other.expand(tensor.shape)
            mesh, placements = tensor.device_mesh, tensor.placements
            other = dtensor_of(take_part(whole, mesh, placements), mesh, placements, whole)
        return method(tensor, other, *args, **kwargs)

    return copy_


def _item_set(method: Callable[..., None]) -> Callable[..., None]:
    """``p[...] = x``, in the whole, of which the rank keeps its part. Collective."""

    @functools.wraps(method)
    def setitem(tensor: Any, key: Any, value: Any) -> None:
        _check_not_lost(tensor, "p[...] = x")
        if not _is_ours(tensor) or (torch.is_grad_enabled() and tensor.requires_grad):
            method(tensor, key, value)
            return
        whole = tensor.full_tensor().clone()
        key, value = pytree.tree_map_only(DTensor, lambda t: t.full_tensor(), (key, value))
        whole[key] = value
        tensor.copy_(whole)

    return setitem


def _by_whole(method: Callable[..., Any]) -> Callable[..., Any]:
    """What the method writes into the whole, of which the rank keeps its part. Collective."""

    @functools.wraps(method)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        _check_not_lost(tensor, method.__name__)
        if not _is_ours(tensor) or (torch.is_grad_enabled() and tensor.requires_grad):
            return method(tensor, *args, **kwargs)
        whole = tensor.full_tensor().clone()
        getattr(whole, method.__name__)(*args, **kwargs)
        return tensor.copy_(whole)

    return call
