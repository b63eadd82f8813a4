"""What calls on the meta device return, without their kernels where these ran alike before.

Most kernels of the meta device are Python, which finds out shapes and dtypes for much longer than
a tensor is made. Layers are alike, so nearly every call repeats an earlier one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree


class KnownResults:
    """Calls ATen operators on plain tensors of the meta device, each once for arguments that have
    equal shapes, strides, dtypes and numbers, if it makes new tensors of them and nothing else."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Results | None] = {}

    def call(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func`` returns. One that only writes, as those of optimizers, does nothing."""
        if _only_writes(func) and all(tensor.is_meta for tensor in args[0]):
            return None
        if not _makes_new(func):
            return func(*args, **kwargs)
        key = (func, _key(args), _key(tuple(kwargs.items())))
        known = self._known.get(key)
        if known is not None:
            return known.again()
        result = func(*args, **kwargs)
        if key not in self._known:
            self._known[key] = _Results.of(result, (args, kwargs))
        return result


@dataclass(frozen=True)
class _Made:
    """A tensor that begins where its memory does."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def again(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class _Results:
    """Tensors with memory of their own each, and what else was returned."""

    leaves: list[Any]
    spec: pytree.TreeSpec

    @staticmethod
    def of(result: Any, given: Any) -> _Results | None:
        """None where making them again would not give the same."""
        leaves, spec = pytree.tree_flatten(result)
        tensors = _tensors(leaves)
        taken = _tensors(pytree.tree_leaves(given))
        owners = {tensor.untyped_storage()._cdata for tensor in tensors}
        if len(owners) < len(tensors) or not all(map(_is_plain, tensors)):
            return None
        if any(not t.is_meta or t.untyped_storage()._cdata in owners for t in taken):
            return None
        return _Results([_made(leaf) for leaf in leaves], spec)

    def again(self) -> Any:
        leaves = [leaf.again() if isinstance(leaf, _Made) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


def _tensors(leaves: list[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _made(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return _Made(leaf.shape, leaf.stride(), leaf.dtype, leaf.device)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is all that shape, strides and dtype say."""
    if (
        type(tensor) is not torch.Tensor
        or not tensor.is_meta
        or tensor.layout != torch.strided
        or tensor.is_neg()
    ):
        return False
    again: torch.Tensor = _made(tensor).again()
    has_own_memory = tensor.untyped_storage().nbytes() == again.untyped_storage().nbytes()
    return has_own_memory and tensor.storage_offset() == 0 and not tensor.is_complex()


@cache
def _makes_new(func: OpOverload) -> bool:
    """Whether its results are new tensors, as its schema says."""
    schema = func._schema
    aliased = (value.alias_info is not None for value in (*schema.arguments, *schema.returns))
    return func.namespace == "aten" and bool(schema.returns) and not any(aliased)


@cache
def _only_writes(func: OpOverload) -> bool:
    """Whether it is one of those that write into all tensors of their first argument."""
    return func._schema.name.startswith("aten::_foreach_") and not func._schema.returns


def _key(value: Any) -> Hashable:
    """Equal for values that are alike."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device)
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return (type(value), value)
