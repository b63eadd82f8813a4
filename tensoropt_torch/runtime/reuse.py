"""Tensor reuse: which copy of a resharded tensor is kept for backward.

Autograd keeps what a consumer saves, that is the tensor *after* the reshard.
Keeping the one *before* instead saves memory and costs a second run of the
reshard program in backward::

    with ReuseRegistry():
        y = ops.reshard(x, forward, names, backward, backward_names)
        keep_before(y, x, forward, names)
        z = consumer(y)      # saves x and the program, not y

A saved tensor is recognised by its storage, so views of ``y`` are as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing import reductions

from tensoropt_torch.runtime import ops


@dataclass
class ReuseCounts:
    """What happened to the tensors registered with one registry."""

    registered: int = 0
    saved: int = 0  # saved tensors (or views) that were replaced
    replays: int = 0  # programs run again in backward


class _Source:
    """How to make a resharded tensor again: its input and the program.

    All ranks must replay at the same points of backward, so that depends on the
    order of backward alone and never on what memory happens to live (a
    communication thread may hold a tensor for a moment longer): the first of the
    saved tensors to be unpacked replays, the others share its result.
    """

    def __init__(
        self,
        result: torch.Tensor,
        x: torch.Tensor,
        forward: Sequence[int],
        groups: Sequence[str],
        dtype: torch.dtype | None,
        counts: ReuseCounts,
    ) -> None:
        # A weak reference keeps the address of the storage from being used
        # again, but not its memory.
        self.result = _weak_reference(result.untyped_storage())
        self.dtype = result.dtype
        self.counts = counts
        self._x = x.detach()
        self._version = x._version
        self._forward = forward
        self._groups = groups
        self._cast = dtype
        self._pending = 0  # saved tensors not unpacked yet
        self._shared: torch.Tensor | None = None

    def add_pending(self) -> None:
        """One more saved tensor will ask for the result."""
        self._pending += 1

    def remove_pending(self) -> None:
        """The shared result is freed after the last one that waits for it."""
        self._pending -= 1
        if self._pending == 0:
            self._shared = None

    def shared(self) -> torch.Tensor:
        """The result for one of those that are pending."""
        if self._shared is None:
            self._shared = self.replay()
        return self._shared

    def replay(self) -> torch.Tensor:
        """The result, made again."""
        if self._x._version != self._version:
            raise RuntimeError(
                "a tensor that backward reshards again was modified in place after "
                "forward (an optimizer step between forward and backward?)"
            )
        self.counts.replays += 1
        with torch.no_grad():
            return ops.reshard(self._x, self._forward, self._groups, dtype=self._cast)


class _Saved:
    """A saved tensor: the source of its storage, and its view of it."""

    def __init__(self, source: _Source, tensor: torch.Tensor) -> None:
        self._source = source
        self._size = tensor.size()
        self._stride = tensor.stride()
        self._offset = tensor.storage_offset()
        self._pending = True
        source.add_pending()
        source.counts.saved += 1

    def unpack(self) -> torch.Tensor:
        """The tensor again. Further backward passes replay for themselves."""
        whole = self._source.shared() if self._pending else self._source.replay()
        self._done()
        return whole.as_strided(self._size, self._stride, self._offset)

    def _done(self) -> None:
        if self._pending:
            self._pending = False
            self._source.remove_pending()

    def __del__(self) -> None:
        """A graph that is dropped without backward needs nothing any more."""
        self._done()


class ReuseRegistry:
    """Context of one forward: ``keep_before`` registers with the innermost one.

    Hooks on saved tensors are set from the first registration on, so that plans
    without any pay nothing.
    """

    def __init__(self) -> None:
        self.counts = ReuseCounts()
        self._sources: dict[int, _Source] = {}  # by address of the storage
        self._hooks: saved_tensors_hooks | None = None
        self._token: Token[ReuseRegistry | None] | None = None

    def __enter__(self) -> ReuseRegistry:
        self._token = _ACTIVE.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._hooks is not None:
            self._hooks.__exit__(kind, error, trace)
            self._hooks = None
        self._sources.clear()
        if self._token is not None:
            _ACTIVE.reset(self._token)

    def register(
        self,
        result: torch.Tensor,
        x: torch.Tensor,
        forward: Sequence[int],
        groups: Sequence[str],
        dtype: torch.dtype | None = None,
    ) -> None:
        """What is saved of ``result`` shall be made again from ``x``.

        Args:
            result: what ``ops.reshard(x, forward, groups, ...)`` gave.
            x: the input of that reshard.
            forward: the encoded program, not empty.
            groups: its process group names.
            dtype: what ``x`` is cast to before.

        """
        self._forget_freed()
        source = _Source(result, x, forward, groups, dtype, self.counts)
        self._sources[source.result.cdata] = source
        self.counts.registered += 1
        if self._hooks is None:
            self._hooks = saved_tensors_hooks(self._pack, _unpack)
            self._hooks.__enter__()

    def _forget_freed(self) -> None:
        freed = [key for key, s in self._sources.items() if s.result.expired()]
        for key in freed:
            del self._sources[key]

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Saved:
        if torch._C._has_storage(tensor):
            source = self._sources.get(tensor.untyped_storage()._cdata)
            if source is not None and source.dtype == tensor.dtype:
                return _Saved(source, tensor)
        return tensor.detach()  # else an output would hold its own graph node


_ACTIVE: ContextVar[ReuseRegistry | None] = ContextVar("reuse_registry", default=None)


def keep_before(
    result: torch.Tensor,
    x: torch.Tensor,
    forward: Sequence[int],
    groups: Sequence[str],
    dtype: torch.dtype | None = None,
) -> None:
    """Registers a reshard's output with the active registry, if there is one.

    See ``ReuseRegistry.register``. Without gradients there is nothing to keep.
    """
    registry = _ACTIVE.get()
    if registry is not None and torch.is_grad_enabled():
        registry.register(result, x, forward, groups, dtype)


def _weak_reference(storage: torch.UntypedStorage) -> Any:
    """A torch.multiprocessing.reductions.StorageWeakRef, which is not annotated."""
    make: Any = reductions.StorageWeakRef
    return make(storage)


def _unpack(packed: torch.Tensor | _Saved) -> torch.Tensor:
    return packed.unpack() if isinstance(packed, _Saved) else packed
