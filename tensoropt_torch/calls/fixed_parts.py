"""Modules and parameters that a parallel module has from the beginning: a plan is for these."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError


class FixedParts:
    """Notices modules, parameters and buffers that come, go or are others.

    Args:
        root: the stand-ins.
        model: the one of the user, of which only modules are looked at.
    """

    def __init__(self, root: nn.Module, model: nn.Module | None = None) -> None:
        self._root = root
        modules = list(root.modules())
        self._owners: list[dict[str, Any]] = [
            own for m in modules for own in (m._modules, m._parameters)
        ]
        self._buffer_owners = [m._buffers for m in modules]
        self._names = self._all_names()
        self._children = dict(root.named_modules(remove_duplicate=False))
        self._parameters = dict(root.named_parameters(remove_duplicate=False))
        self._found = self._parts()
        self._theirs: list[_Family | _Hooks] = (
            [] if model is None else [*_families(model), *_hooks_of(model)]
        )

    def check(self) -> None:
        """Raises TensorOptError if something is another."""
        for family in self._theirs:
            family.check()
        found = self._parts()
        if found != self._found:
            self._check_all()
            self._found = found

    def _parts(self) -> tuple[list[int], list[int]]:
        values = chain.from_iterable(map(dict.values, self._owners))
        return list(map(id, values)), list(map(len, self._buffer_owners))

    def _all_names(self) -> set[str]:
        """Of all there is, and what it is."""
        root = self._root
        return {
            *(f"submodule '{n}'" for n, _ in root.named_modules(remove_duplicate=False)),
            *(f"parameter '{n}'" for n, _ in root.named_parameters(remove_duplicate=False)),
            *(f"buffer '{n}'" for n, _ in root.named_buffers(remove_duplicate=False)),
        }

    def _check_all(self) -> None:
        for name, child in self._root.named_modules(remove_duplicate=False):
            if self._children.get(name) is not child:
                raise _refusal(f"submodule '{name}'")
        for what in sorted(self._names ^ self._all_names()):
            raise _refusal(what)
        parameters = dict(self._root.named_parameters(remove_duplicate=False))
        for name, parameter in parameters.items():
            _check_layout(name, self._parameters[name], parameter)
        self._parameters = parameters


@dataclass(frozen=True)
class _Family:
    """The submodules of a module of the user, which it does not keep alive."""

    path: str
    parent: weakref.ref[nn.Module]
    children: Mapping[str, weakref.ref[nn.Module]]
    ids: list[int]

    def check(self) -> None:
        parent = self.parent()
        if parent is None or list(map(id, parent._modules.values())) == self.ids:
            return
        for name, child in parent._modules.items():
            known = self.children.get(name)
            if child is not None and (known is None or known() is not child):
                raise _refusal(f"submodule '{self.path}{name}' of the model")


def _families(model: nn.Module) -> Iterator[_Family]:
    for path, module in model.named_modules():
        children = {n: c for n, c in module._modules.items() if c is not None}
        if children:
            references = {name: weakref.ref(child) for name, child in children.items()}
            ids = list(map(id, module._modules.values()))
            yield _Family(f"{path}." if path else "", weakref.ref(module), references, ids)


@dataclass(frozen=True)
class _Hooks:
    """Hooks of a module of the user, which its graph has inside."""

    path: str
    hooks: weakref.ref[Any]
    keys: tuple[int, ...]

    def check(self) -> None:
        now = self.hooks()
        if now is not None and tuple(now) != self.keys:
            raise TensorOptError(
                f"module '{self.path}' of the model has other forward hooks than when it became "
                "parallel, which its graph has inside; set and remove hooks before, and plan again"
            )


def _hooks_of(model: nn.Module) -> Iterator[_Hooks]:
    for path, module in model.named_modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            yield _Hooks(path, weakref.ref(hooks), tuple(hooks))


def _check_layout(name: str, old: torch.Tensor, new: torch.Tensor) -> None:
    """A parameter may become another with the same part of it on each rank, as by
    ``load_state_dict(assign=True)``, or because weights are tied."""
    if new is old:
        return
    same = isinstance(new, nn.Parameter) and (new.shape, new.dtype) == (old.shape, old.dtype)
    if isinstance(old, DTensor):
        same = same and isinstance(new, DTensor) and new.placements == old.placements
    if not same:
        raise _refusal(f"parameter '{name}'")


def _refusal(what: str) -> TensorOptError:
    return TensorOptError(
        f"{what} is another one than when the module became parallel, so that its plan is for "
        "another model; change the model before (swap submodules, tie weights, add adapters), "
        "and plan again"
    )
