"""The attributes of the model that its graphs have read: compared at each call with what they
were, wherever they were changed.

They may change on the parallel module and its stand-ins, on the modules of the loss, and on the
model that was made parallel as long as somebody else keeps that. What was changed last counts.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import torch
from torch import nn

from tensoropt_torch.calls.fixed_parts import FixedParts
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.watching import (
    MISSING,
    Fields,
    Identity,
    Image,
    Images,
    Owner,
    Place,
    differences,
    image_of,
    is_atom,
    is_fixed,
    is_portable,
    owners_of,
    restricted,
    told,
    value_at,
)

_Reference = Callable[[], nn.Module | None]
_VALUES = (torch.Tensor, types.FunctionType, types.BuiltinFunctionType, type)


@dataclass(frozen=True)
class AttributeState:
    """Which attributes are not what they were at first, and what they are.

    Attributes:
        changed: their images.
        text: the same, in words that are equal on all ranks for equal changes.
    """

    changed: frozenset[tuple[Place, Image]] = frozenset()
    text: str = field(default="", compare=False)

    def of(self, places: frozenset[Place]) -> frozenset[tuple[Place, Image]]:
        """What has changed among these."""
        return frozenset(item for item in self.changed if item[0] in places)

    def __str__(self) -> str:
        return self.text


UNCHANGED = AttributeState()


class AttributeWatch:
    """Looks at the attributes that graphs have read.

    Args:
        root: the stand-ins.
        structure: the modules that are captured again, in the same order.
        model: the one of the user.
        loss_fn: what is called after it.
    """

    def __init__(
        self,
        root: nn.Module,
        structure: nn.Module,
        model: nn.Module | None = None,
        loss_fn: Callable[..., Any] | None = None,
    ) -> None:
        owners = owners_of(root, loss_fn)
        self._modules = {(o.path, o.of_loss): o.module for o in owners}
        self._structure = dict(structure.named_modules())
        self._trees = [_Tree(owners, lambda module: lambda: module)]
        if model is not None and model is not structure:
            self._trees.append(_Tree(owners_of(model), weakref.ref))
        self._parts = FixedParts(root, model)
        self._first = dict(self._trees[0].seen)
        self._now: dict[Place, Image] = {}
        self._watched: frozenset[Place] = frozenset()
        self._written: frozenset[Place] = frozenset()
        self._fields: dict[str, frozenset[str]] | None = None
        self._touched: set[Place] = set()
        self._history: dict[str, list[Image]] = {}
        self._state = UNCHANGED

    @property
    def modules(self) -> Mapping[tuple[str, bool], nn.Module]:
        """Those whose attributes forward writes, by path, and whether they are of the loss."""
        return self._modules

    def watch(
        self, reads: Iterable[Place], written: Iterable[Place] = (), fields: Fields | None = None
    ) -> None:
        """Looks at these from now on, too; what forward writes is no change. Of objects that are
        in attributes their ``fields`` count.

        Raises:
            TensorOptError: calls of one kind read what those of another write.
        """
        watched, all_written = self._watched | set(reads), self._written | set(written)
        for place in sorted(watched & all_written):
            raise TensorOptError(
                f"attribute '{place}' is written by forward in calls of one kind and read in those "
                "of another, so that what they compute depends on the calls before; make it a "
                "buffer, return it and pass it as an input, or if it is a table, make it when the "
                "model is made, as large as the longest input needs"
            )
        self._watched, self._written = watched, all_written
        self._fields = _joined(self._fields, fields or {})
        for place in self._watched - self._first.keys():
            self._first[place] = image_of(value_at(self._modules[place[::2]], place.name))
        for tree in self._trees:
            tree.watch(self._watched)
        self._update()

    def first(self, place: Place) -> Image:
        """What an attribute was when the module became parallel."""
        return self._first.get(place, _NOTHING)

    def look(self) -> AttributeState:
        """What has changed.

        Raises:
            TensorOptError: an attribute has become different things on the parallel module and
                on the model; a module or parameter is another.
        """
        self._parts.check()
        if all(tree.is_unchanged() for tree in self._trees):
            return self._state
        self._take(self._watched)
        return self._state

    def write_all(self) -> None:
        """All attributes, watched or not, of the modules that are captured are what they are
        now."""
        self._take(None)
        for place in self._touched:
            if place.of_loss:
                continue
            own = self._modules[place[::2]].__dict__
            theirs = self._structure[place.path].__dict__
            if place.name in own:
                theirs[place.name] = own[place.name]
            else:
                theirs.pop(place.name, None)

    def _take(self, places: frozenset[Place] | None) -> None:
        """Takes over what has changed among these places; None: among all."""
        found = [tree.changes(places, self._written) for tree in self._trees]
        own, theirs = found[0], found[1] if len(found) > 1 else {}
        if len(self._trees) > 1:
            self._trees[1].accept(theirs)
        theirs = {p: i for p, i in theirs.items() if p in self._watched or _is_value(p, i)}
        for place in own.keys() & theirs.keys():
            if self._counted(own[place]) != self._counted(theirs[place]):
                raise TensorOptError(
                    f"attribute '{place}' has become {told(own[place])} on the parallel module "
                    f"and {told(theirs[place])} on the model; set it on one of them, or to the same"
                )
        values = self._copied([place for place in theirs if place not in own])
        for place, value in values.items():
            self._modules[place[::2]].__dict__[place.name] = value
            own[place] = image_of(value)
        for place, image in own.items():
            self._check(place)
            self._touched.add(place)
            if image == self.first(place):
                self._now.pop(place, None)
            else:
                self._now[place] = image
        self._trees[0].accept(own)
        self._update()

    def _copied(self, places: Sequence[Place]) -> dict[Place, Any]:
        """What these are on the model of the user, copied together."""
        values = {place: self._trees[1].value(place) for place in places}
        values = {place: value for place, value in values.items() if value is not MISSING}
        try:
            return copy.deepcopy(values)
        except Exception:  # whatever the user's classes raise
            return values

    def _check(self, place: Place) -> None:
        value = value_at(self._modules[place[::2]], place.name)
        items = value.values() if isinstance(value, dict) else value
        items = items if isinstance(items, (list, tuple)) else [items]
        if any(isinstance(item, (nn.Module, torch.Generator)) for item in items):
            raise TensorOptError(
                f"attribute '{place}' holds another {type(value).__name__} than when the module "
                "became parallel; set it before, and plan again"
            )

    def _update(self) -> None:
        watched = {p: self._counted(i) for p, i in self._now.items() if p in self._watched}
        first = {place: self._counted(self.first(place)) for place in watched}
        now = {place: image for place, image in watched.items() if image != first[place]}
        texts = [
            f"{name} = {self._text(name, image)}"
            for place in sorted(now)
            for name, image in differences(str(place), first[place], now[place])
        ]
        self._state = AttributeState(frozenset(now.items()), ", ".join(texts))

    def _counted(self, image: Image) -> Image:
        """What of it counts."""
        return restricted(image, self._fields or {})

    def _text(self, name: str, image: Image) -> str:
        """Equal on ranks whose attributes have changed alike."""
        if is_atom(image) or is_portable(image):
            return str(told(image) if is_atom(image) else image)
        history = self._history.setdefault(name, [])
        if image not in history:
            history.append(image)
        return f"{told(image)} (change {history.index(image) + 1})"


def _is_value(place: Place, image: Image) -> bool:
    """Whether it is something that a forward pass computes with, and no object that a training
    loop leaves in a module: itself, or the parallel module in place of ``forward``."""
    if place.name == "forward":
        return False
    return not isinstance(image, Identity) or isinstance(image.value, _VALUES)


def _joined(one: Fields | None, other: Fields) -> dict[str, frozenset[str]]:
    """What counts for either. Of a class that only one of them knows everything may count."""
    if one is None:
        return dict(other)
    return {kind: names | other[kind] for kind, names in one.items() if kind in other}


class _Tree:
    """The modules of a parallel module, or of the user's model.

    Attributes:
        seen: the images of the last look.
    """

    def __init__(
        self, owners: Sequence[Owner], referring: Callable[[nn.Module], _Reference]
    ) -> None:
        self._references = {(o.path, o.of_loss): referring(o.module) for o in owners}
        self._groups: list[tuple[_Reference, tuple[str, ...], tuple[int, ...]]] = []
        self._deep: list[tuple[Place, Image]] = []
        self._kept: list[Any] = []
        self._watched: frozenset[Place] = frozenset()
        images = Images()
        self.seen: dict[Place, Image] = {
            owner.place(name): image
            for owner in owners
            for name, image in images.of_module(owner.module).items()
        }

    def value(self, place: Place) -> Any:
        """What an attribute is."""
        module = self._references[place[::2]]()
        return MISSING if module is None else value_at(module, place.name)

    def watch(self, places: frozenset[Place]) -> None:
        """``is_unchanged`` tells of these."""
        self._watched = frozenset(place for place in places if place[::2] in self._references)
        images = Images()
        for place in self._watched - self.seen.keys():
            self.seen[place] = images.of(self.value(place))
        self._begin()

    def is_unchanged(self) -> bool:
        """Whether all watched attributes are what they were."""
        for reference, names, ids in self._groups:
            module = reference()
            if module is not None:
                own = module.__dict__
                if tuple(map(id, map(own.get, names, repeat(MISSING)))) != ids:
                    return False
        images = Images()
        return all(
            self._references[place[::2]]() is None or images.of(self.value(place)) == image
            for place, image in self._deep
        )

    def changes(
        self, places: frozenset[Place] | None, ignored: frozenset[Place]
    ) -> dict[Place, Image]:
        """The images of what differs from the last look among places, None: among all."""
        found, images = {}, Images()
        for place in self._all() if places is None else self._watched:
            if place in ignored or self._references[place[::2]]() is None:
                continue
            image = images.of(self.value(place))
            if image != self.seen.get(place, _NOTHING):
                found[place] = image
        return found

    def accept(self, images: Mapping[Place, Image]) -> None:
        """These were seen."""
        self.seen |= images
        self._begin()

    def _all(self) -> Iterator[Place]:
        yield from self.seen
        images = Images()
        for (path, of_loss), reference in self._references.items():
            module = reference()
            for name in () if module is None else images.of_module(module):
                if Place(path, name, of_loss) not in self.seen:
                    yield Place(path, name, of_loss)

    def _begin(self) -> None:
        """Objects may get the number of one that is gone: plain values are kept, of others
        their images are compared."""
        self._groups, self._deep, self._kept = [], [], []
        names: dict[tuple[str, bool], list[str]] = {}
        for place in sorted(self._watched):
            names.setdefault(place[::2], []).append(place.name)
        for key, own_names in names.items():
            module = self._references[key]()
            if module is None:
                continue
            values = [vars(module).get(name, MISSING) for name in own_names]
            self._groups.append((self._references[key], tuple(own_names), tuple(map(id, values))))
            for name, value in zip(own_names, values, strict=True):
                place = Place(key[0], name, key[1])
                if is_fixed(value):
                    self._kept.append(value)
                    if value is MISSING and self.value(place) is not MISSING:
                        self._deep.append((place, self.seen[place]))
                else:
                    self._deep.append((place, self.seen[place]))


_NOTHING = image_of(MISSING)
