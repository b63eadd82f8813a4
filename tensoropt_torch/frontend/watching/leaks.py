"""Tensors of a forward pass that outlive its capture: somebody collects them."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError

_HOLDERS = (list, dict, set, tuple, types.CellType)
_DEPTH = 4  # of containers in containers
_LIBRARIES = ("torch", "tensoropt_torch", "sympy", "functools", "contextlib")

# Hooks that a captured forward sets: what they hold is in the graph. Of the process, since they
# are functions of the program, on which an attribute would be seen by it.
_HOOKS: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


def is_in_graph(function: types.FunctionType) -> None:
    """Tensors of forward that this function holds are no leak."""
    _HOOKS.add(function)


class LeakedTensors:
    """The tensors that a forward pass makes. ``check`` raises once nobody but collectors holds
    them any more."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile what functions return is noted."""
        with _Results(self._made):
            yield

    def check(self) -> None:
        """Raises TensorOptError if a list, dict or closure outside has one of the tensors."""
        if any(reference() is not None for reference in self._made.values()):
            gc.collect()
        alive = [t for reference in self._made.values() if (t := reference()) is not None]
        self._made.clear()
        ignored = {id(alive)}
        for tensor in alive:
            holder = _holder(tensor, ignored)
            if holder is not None:
                raise TensorOptError(
                    f"the forward pass of {self._model} (or one of its hooks) puts a tensor into "
                    f"{holder}, which is outside of the module; a captured graph would put nothing "
                    "there. Let the module return the tensor, or write it into an attribute"
                )


class _Results(TorchFunctionMode):
    def __init__(self, made: dict[int, weakref.ref[torch.Tensor]]) -> None:
        super().__init__()
        self._made = made

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in (result,) if isinstance(result, torch.Tensor) else pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._made[id(value)] = weakref.ref(value)
        return result


def _holder(tensor: Any, ignored: set[int]) -> str | None:
    """What a person calls the container of the program that holds the tensor."""
    seen, level = set(ignored), [tensor]
    for _ in range(_DEPTH):
        found: list[Any] = []
        for value in level:
            for holder in gc.get_referrers(value):
                in_graph = isinstance(holder, types.FunctionType) and holder in _HOOKS
                if id(holder) in seen or in_graph or not _may_hold(holder) or holder is level:
                    continue
                seen.add(id(holder))
                name = _global_name(holder, value)
                if name is not None:
                    return name
                found.append(holder)
        seen.add(id(found))
        level = found
    return None


def _may_hold(holder: Any) -> bool:
    return isinstance(holder, (*_HOLDERS, types.FunctionType)) or (
        hasattr(holder, "__dict__") and not isinstance(holder, (torch.Tensor, types.FrameType))
    )


def _global_name(holder: Any, value: Any) -> str | None:
    """Where the value is, if the holder is what a module of the program has, or a function."""
    if isinstance(holder, types.FunctionType):
        return None if _is_library(holder.__module__) else f"a closure of {holder.__qualname__}"
    if not isinstance(holder, dict) or "__name__" not in holder or "__spec__" not in holder:
        return None
    if _is_library(holder["__name__"]):
        return None
    name = next((n for n, item in holder.items() if item is value), None)
    return None if name is None else f"'{name}' of {holder['__name__']}"


def _is_library(module: str | None) -> bool:
    return (module or "").split(".")[0] in _LIBRARIES
