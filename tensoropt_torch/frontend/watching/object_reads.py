"""Which attributes a forward pass reads of objects that hold values, such as configurations."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensoropt_torch.frontend.watching.images import Fields, name_of

_OPAQUE = (nn.Module, torch.Tensor, type)
_NOT_OF_USERS = ("builtins", __name__.partition(".")[0])


def is_record(value: Any) -> bool:
    """Whether it is an object that holds values."""
    return type(getattr(value, "__dict__", None)) is dict and not (
        isinstance(value, _OPAQUE) or callable(value)
    )


class RecordReads:
    """Notes what is read of objects of the classes of those that it was shown, and of those
    that are read of them."""

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._all: set[str] = set()  # classes of which everything counts
        self._watched: dict[Any, Any] = {}

    @property
    def fields(self) -> Fields:
        """The names that were read, by class."""
        return {
            kind: frozenset(names) for kind, names in self._names.items() if kind not in self._all
        }

    def watch(self, value: Any) -> None:
        """From now on, if it is such an object."""
        kind: Any = type(value)
        source = kind.__module__.partition(".")[0]
        if kind in self._watched or source in _NOT_OF_USERS or not is_record(value):
            return
        given = kind.__getattribute__
        note = self._note

        def read(record: Any, name: str) -> Any:
            found = given(record, name)
            note(record, name, found)
            return found

        before = vars(kind).get("__getattribute__")
        try:
            kind.__getattribute__ = read
        except TypeError:  # a class that cannot be changed
            return
        self._watched[kind] = before
        self._names.setdefault(name_of(kind), set())

    def end(self) -> None:
        """The classes are what they were."""
        for kind, before in self._watched.items():
            if before is None:
                del kind.__getattribute__
            else:
                kind.__getattribute__ = before
        self._watched = {}

    def _note(self, record: Any, name: str, found: Any) -> None:
        kind = type(record)
        if name == "__dict__":
            self._all.add(name_of(kind))
        elif name[:2] != "__":
            # Of configurations of Hugging Face some have another name for the same.
            other = getattr(kind, "attribute_map", {}).get(name, name)
            self._names.setdefault(name_of(kind), set()).update((name, other))
            self.watch(found)
