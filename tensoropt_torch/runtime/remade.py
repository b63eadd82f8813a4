"""Saved tensors that are not kept: backward makes them again when it needs them.

All ranks must do so at the same points of backward, so these depend on the order of backward
alone and never on what memory happens to live (a communication thread may hold a tensor for a
moment longer): the first of the saved tensors to be unpacked makes what it needs, the others
that wait for the same share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.multiprocessing import reductions


class Remade(ABC):
    """A tensor of forward, how to make it again, and what was made.

    Args:
        tensor: as forward had it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        # A weak reference keeps the address of the storage from being used
        # again, but not its memory.
        self.storage = _weak_reference(tensor.untyped_storage())
        self.dtype = tensor.dtype
        self._pending = 0  # saved tensors not unpacked yet
        self._shared: torch.Tensor | None = None

    @abstractmethod
    def make(self) -> None:
        """Makes it for those that are pending: ``share`` is called with it."""

    @abstractmethod
    def replay(self, made: Mapping[Remade, torch.Tensor]) -> Mapping[Remade, torch.Tensor]:
        """The tensor, made again for one that is not pending, and what comes with it. What it is
        made of is found in ``made`` first."""

    def operands(self) -> Sequence[Held]:
        """What it is made of, where that may have to be made again itself."""
        return ()

    def check_values(self) -> None:
        """Raises RuntimeError if it would be made of other values than in forward."""
        return

    def add_pending(self) -> None:
        """One more saved tensor will ask for it."""
        self._pending += 1

    def remove_pending(self) -> None:
        """What is shared is freed after the last one that waits for it."""
        self._pending -= 1
        if self._pending == 0:
            self._shared = None

    def share(self, made: torch.Tensor) -> None:
        """What was made, for those that are pending."""
        if self._pending > 0:
            self._shared = made

    def shared(self) -> torch.Tensor:
        """The tensor for one of those that are pending."""
        if not self.is_shared:
            for remade in _in_order(self, lambda other: other.is_shared, pending=True):
                remade.make()
        assert self._shared is not None
        return self._shared

    def again(self) -> torch.Tensor:
        """The tensor for one that is no longer pending, in a further backward pass. What it is
        made of is made once, and kept until it is there."""
        made: dict[Remade, torch.Tensor] = {}
        for remade in _in_order(self, made.__contains__, pending=False):
            made.update(remade.replay(made))
        return made[self]

    @property
    def is_shared(self) -> bool:
        """Whether it is there for those that are pending."""
        return self._shared is not None


class SavedTensor:
    """A saved tensor: what makes its storage again, and its view of it."""

    def __init__(self, remade: Remade, tensor: torch.Tensor) -> None:
        self.remade = remade
        self._size = tensor.size()
        self._stride = tensor.stride()
        self._offset = tensor.storage_offset()
        self.is_pending = True
        remade.add_pending()

    def unpack(self, made: Mapping[Remade, torch.Tensor] = MappingProxyType({})) -> torch.Tensor:
        """The tensor again, of what is ``made`` already if it is there. Further backward passes
        make it for themselves."""
        whole = made.get(self.remade)
        if whole is None:
            whole = self.remade.shared() if self.is_pending else self.remade.again()
        self._done()
        return whole.as_strided(self._size, self._stride, self._offset)

    def unpack_values(
        self, made: Mapping[Remade, torch.Tensor] = MappingProxyType({})
    ) -> torch.Tensor:
        """The same; raises RuntimeError if forward had other values."""
        self.remade.check_values()
        return self.unpack(made)

    def _done(self) -> None:
        if self.is_pending:
            self.is_pending = False
            self.remade.remove_pending()

    def __del__(self) -> None:
        """A graph that is dropped without backward needs nothing any more."""
        self._done()


def _in_order(
    last: Remade, is_there: Callable[[Remade], bool], *, pending: bool
) -> Iterator[Remade]:
    """It, after all that it is made of and that is not there yet. No recursion: a chain of them
    may be as long as a model is deep."""
    needed = [last]
    while needed:
        below = next((r for r in _remade_of(needed[-1], pending=pending) if not is_there(r)), None)
        if below is None:
            yield needed.pop()
        else:
            needed.append(below)


def _remade_of(remade: Remade, *, pending: bool) -> Iterator[Remade]:
    """What it is made of that has to be made again, where this waits for it or not."""
    for held in remade.operands():
        if isinstance(held, SavedTensor) and held.is_pending == pending:
            yield held.remade


NameOf = Callable[[torch.Tensor], str | None]


class Unchanged:
    """A tensor that backward needs as it was in forward.

    PyTorch looks itself whether somebody has written to what it has saved, but not at what hooks
    give it back.

    Args:
        tensor: as forward has it.
        name_of: what it is called, if it is known, should somebody write to it.
    """

    __slots__ = ("_name_of", "_tensor", "_version", "_writes")

    def __init__(self, tensor: torch.Tensor, name_of: NameOf | None = None) -> None:
        self._tensor = tensor.detach()  # else an output would hold its own graph node
        self._version = tensor._version
        self._writes = writes_without_version(tensor)
        self._name_of = name_of

    @property
    def is_as_it_was(self) -> bool:
        """Whether nobody has written to it since."""
        return self._tensor._version == self._version

    def unpack(self) -> torch.Tensor:
        """Without its graph.

        Raises:
            RuntimeError: somebody has written to it.
        """
        if not self.is_as_it_was:
            raise RuntimeError(self._what_was_done())
        return self._tensor

    def unpack_values(self) -> torch.Tensor:
        """The same for what computes values of forward again.

        Raises:
            RuntimeError: somebody has written to it, also by ``parameter.data``.
        """
        if writes_without_version(self._tensor) != self._writes:
            raise RuntimeError(self._what_was_done())
        return self.unpack()

    def _what_was_done(self) -> str:
        tensor = self._tensor
        name = None if self._name_of is None else self._name_of(tensor)
        called = "" if name is None else f", {name},"
        how = f"is at version {tensor._version}; expected version {self._version} instead"
        if self.is_as_it_was:
            how = "was written to through its .data, and the plan runs operators again with it"
        return (
            "one of the variables needed for gradient computation has been modified in place after "
            f"forward: [{tensor.type()} {list(tensor.shape)}]{called} {how}. Is something "
            "written to between forward and backward, by a step of an optimizer or through .data, "
            "say? Call backward before, or write to a copy"
        )


Held = Unchanged | SavedTensor


def count_write_without_version(tensor: torch.Tensor) -> None:
    """Its memory is written to, maybe by a tensor with a version of its own (``p.data``)."""
    if torch._C._has_storage(tensor):
        storage: Any = tensor.untyped_storage()
        storage.writes_without_version = writes_without_version(tensor) + 1


def writes_without_version(tensor: torch.Tensor) -> int:
    """How many of them are known."""
    if not torch._C._has_storage(tensor):
        return 0
    return getattr(tensor.untyped_storage(), "writes_without_version", 0)


def address_of(tensor: torch.Tensor) -> int | None:
    """Of its storage, by which a tensor and its views are known; None without a storage."""
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else None


def _weak_reference(storage: torch.UntypedStorage) -> Any:
    """A torch.multiprocessing.reductions.StorageWeakRef, which is not annotated."""
    make: Any = reductions.StorageWeakRef
    return make(storage)
