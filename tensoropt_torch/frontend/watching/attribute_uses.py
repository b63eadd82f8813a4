"""What a captured graph has from attributes, and what it puts into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.watching.attribute_reads import is_attribute
from tensoropt_torch.frontend.watching.images import MISSING, Fields, Image, image_of


class Place(NamedTuple):
    """An attribute of a module, which is one of the model or of its ``loss_fn``."""

    path: str
    name: str
    of_loss: bool = False

    def __str__(self) -> str:
        path = ("loss_fn", self.path) if self.of_loss else (self.path,)
        return ".".join([*filter(None, path), self.name])


class Owner(NamedTuple):
    """A module whose attributes are looked at."""

    path: str
    module: nn.Module
    of_loss: bool = False

    def place(self, name: str) -> Place:
        return Place(self.path, name, self.of_loss)


def owners_of(model: nn.Module | None, loss_fn: Callable[..., Any] | None = None) -> list[Owner]:
    """The modules of a model, in the order of ``modules()``, and those of its loss."""
    found = [] if model is None else [Owner(path, m) for path, m in model.named_modules()]
    if isinstance(loss_fn, nn.Module):
        found += [Owner(path, module, True) for path, module in loss_fn.named_modules()]
    return found


class Images:
    """Images of many attributes; a value that several have is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Image]] = {}

    def of(self, value: Any) -> Image:
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = value, image_of(value)
        return found[1]

    def of_module(self, module: nn.Module) -> dict[str, Image]:
        """Of all attributes."""
        own = vars(module)
        return {name: self.of(own[name]) for name in list(own) if is_attribute(own, name)}


@dataclass(frozen=True)
class Written:
    """What forward puts into attributes: tensors, which are outputs of the graph after those of
    the module, and what is always the same.

    Attributes:
        places: the attributes.
        spec: the containers of their values.
        leaves: what is in them; None in the place of a tensor.
        is_tensor: which of the leaves are tensors.
    """

    places: tuple[Place, ...]
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    is_tensor: tuple[bool, ...]

    @staticmethod
    def of(values: Mapping[Place, Any]) -> tuple[Written, list[torch.Tensor]]:
        """With the tensors among the values."""
        leaves, spec = pytree.tree_flatten(list(values.values()))
        is_tensor = tuple(isinstance(leaf, torch.Tensor) for leaf in leaves)
        kept = tuple(None if t else leaf for t, leaf in zip(is_tensor, leaves, strict=True))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return Written(tuple(values), spec, kept, is_tensor), tensors

    def put_back(
        self, modules: Mapping[tuple[str, bool], nn.Module], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Gives the attributes what a call made. ``modules``: by path, and whether they are of
        the loss."""
        rest = iter(tensors)
        leaves = [
            next(rest) if is_tensor else leaf
            for is_tensor, leaf in zip(self.is_tensor, self.leaves, strict=True)
        ]
        for place, value in zip(self.places, pytree.tree_unflatten(leaves, self.spec), strict=True):
            vars(modules[place.path, place.of_loss])[place.name] = value


@dataclass(frozen=True)
class Attributes:
    """What a forward pass did with attributes.

    Attributes:
        reads: those that it read.
        written: what it put into some.
        fields: which attributes it read of the objects that are in attributes, by their class.
        fills: buffers and attributes that held nothing before, and of which a later call would use
            what this one has made.
    """

    reads: tuple[Place, ...] = ()
    written: Written | None = None
    fields: Fields = field(default_factory=dict)
    fills: tuple[str, ...] = ()


def value_at(module: nn.Module, name: str) -> Any:
    """What a module has under a name, itself or by its class; of functions of the class, and
    of what it has not, ``MISSING``."""
    own = vars(module)
    if name in own:
        return own[name]
    for kind in type(module).__mro__:
        found = vars(kind).get(name, MISSING)
        if found is not MISSING:
            return MISSING if callable(found) or hasattr(type(found), "__get__") else found
    return MISSING


def changed_values(
    before: Mapping[Place, Image], after: Mapping[Place, Image]
) -> Iterator[tuple[Place, Image, Image]]:
    """The attributes whose images differ, with both."""
    for place in {**before, **after}:
        old, new = before.get(place, MISSING), after.get(place, MISSING)
        if old != new:
            yield place, old, new
