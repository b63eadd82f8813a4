"""Which attributes of modules a forward pass reads and writes, while it is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from tensoropt_torch.frontend.watching.images import Fields
from tensoropt_torch.frontend.watching.object_reads import RecordReads

# What modules have themselves: of those only what an instance puts in the way of its class.
_OF_MODULES = frozenset({*vars(nn.Module), *vars(nn.Module()), "_flat_weights"})

HOOKS = tuple(name for name in vars(nn.Module()) if "_hooks" in name)

Key = tuple[int, str]  # of the dict of attributes, and the name


class AccessLog:
    """The attributes that were read or written, by the dict of the module that has them.

    Attributes:
        first: whether the first access was a read, by key.
        modules: those of which something was read or written, by the id of their dict.
    """

    def __init__(self) -> None:
        self.first: dict[Key, bool] = {}
        self.modules: dict[int, nn.Module] = {}
        self._records = RecordReads()

    @property
    def fields(self) -> Fields:
        """Which attributes were read of objects that are in attributes."""
        return self._records.fields

    @property
    def reads(self) -> list[Key]:
        """What was read before it was written."""
        return [key for key, is_read in self.first.items() if is_read]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile accesses are noted, of all modules there are."""
        before = dict(vars(nn.Module))
        set_attribute = nn.Module.__setattr__
        get_own = object.__getattribute__
        note = self._note

        def read(module: nn.Module, name: str) -> Any:
            if name[:2] != "__":
                note(module, get_own(module, "__dict__"), name, True)
            return get_own(module, name)

        def write(module: nn.Module, name: str, value: Any) -> None:
            note(module, get_own(module, "__dict__"), name, False)
            set_attribute(module, name, value)

        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        nn.Module.__setattr__ = write  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            if "__getattribute__" in before:
                nn.Module.__getattribute__ = before["__getattribute__"]  # type: ignore[method-assign]
            else:
                del nn.Module.__getattribute__
            nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign]
            self._records.end()

    def _note(self, module: nn.Module, own: dict[str, Any], name: str, is_read: bool) -> None:
        key = (id(own), name)
        if key in self.first or not is_attribute(own, name):
            return
        self.first[key] = is_read
        self.modules.setdefault(id(own), module)
        self._records.watch(own.get(name))


def is_attribute(own: dict[str, Any], name: str) -> bool:
    """Whether it is one of the user's, and no parameter, buffer or submodule."""
    if name in _OF_MODULES:
        return name in own and name in vars(nn.Module)
    return not any(name in own.get(kind, ()) for kind in ("_parameters", "_buffers", "_modules"))
