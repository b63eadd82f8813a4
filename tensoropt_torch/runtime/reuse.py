"""Tensor reuse: which copy of a resharded tensor is kept for backward.

Autograd keeps what a consumer saves, that is the tensor *after* the reshard.
Keeping the one *before* instead saves memory and costs a second run of the
reshard program in backward::

    with ReuseRegistry():
        y = ops.reshard(x, forward, names, backward, backward_names)
        keep_before(y, x, forward, names)
        z = consumer(y)      # saves x and the program, not y

A saved tensor is recognised by its storage (``remade.py``), so views of ``y`` are as well.
Parameters may be made again together, and ahead of their use.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType

import torch
from torch.autograd.graph import saved_tensors_hooks

from tensoropt_torch.runtime import ops
from tensoropt_torch.runtime.parameter_queue import (
    ParameterQueue,
    begin_gathers,
    begin_value,
    parameter_queue,
    take_value,
)
from tensoropt_torch.runtime.remade import Held, NameOf, Remade, SavedTensor, Unchanged, address_of

Pack = Callable[[torch.Tensor], Held]


@dataclass
class ReuseCounts:
    """What happened to the tensors registered with one registry."""

    registered: int = 0
    saved: int = 0  # saved tensors (or views) that were replaced
    replays: int = 0  # programs run again in backward


class _Program:
    """What makes a tensor again: an input, as it was in forward, and what is run on it."""

    def __init__(
        self,
        x: torch.Tensor,
        forward: Sequence[int],
        groups: Sequence[str],
        cast: torch.dtype | None,
        name_of: NameOf | None,
    ) -> None:
        self.forward = forward
        self.groups = groups
        self.cast = cast
        self.is_needed = False  # what is made was saved
        self.input = Unchanged(x, name_of)

    @property
    def x(self) -> torch.Tensor:
        """The input, as it was in forward."""
        return self.input.unpack()


class _Source(Remade):
    """How to make a resharded tensor again, and what was made."""

    def __init__(self, result: torch.Tensor, program: _Program, counts: ReuseCounts) -> None:
        super().__init__(result)
        self.bucket: _Bucket | None = None
        self._program = program
        self._counts = counts

    def check_values(self) -> None:
        self._program.input.unpack_values()

    def add_pending(self) -> None:
        super().add_pending()
        self._program.is_needed = True
        self._counts.saved += 1

    def make(self) -> None:
        if self.bucket is None:
            self.share(self._run())
        else:
            self._counts.replays += self.bucket.replay()

    def replay(self, made: Mapping[Remade, torch.Tensor]) -> Mapping[Remade, torch.Tensor]:
        return {self: self._run()}

    def _run(self) -> torch.Tensor:
        self._counts.replays += 1
        program = self._program
        with torch.no_grad():
            return ops.reshard(program.x, program.forward, program.groups, dtype=program.cast)


@dataclass(frozen=True)
class _Member:
    """Of a bucket. Who no longer waits for what it makes is gone."""

    program: _Program
    source: weakref.ref[_Source]
    dtype: torch.dtype
    gathered_dim: int | None


class _Bucket:
    """Parameters that are made again together, by one collective; or one that is by itself.

    What belongs to a bucket is what forward saved, whatever became of it since: so it is the
    same on all ranks.
    """

    def __init__(self, before: _Bucket | None, ahead: bool) -> None:
        self._before = before  # in forward, so that it is next in backward
        self._ahead = ahead
        self._members: list[_Member] = []
        self._queue: ParameterQueue | None = None
        self._is_done = False

    def add(self, source: _Source, program: _Program, gathered_dim: int | None) -> None:
        """One more; several need a dim each, along which they are gathered."""
        source.bucket = self
        member = _Member(program, weakref.ref(source), source.dtype, gathered_dim)
        self._members.append(member)

    def replay(self) -> int:
        """Gives all of its sources their results, and begins the bucket that is next; how many
        programs were run for it."""
        with torch.no_grad():
            queue, needed = self._begin(), self._needed()
            for slot, member in enumerate(needed):
                result = take_value(member.program.x, queue, slot)
                source = member.source()
                if source is not None:
                    source.share(result)
            self._queue = None
            self._is_done = True
            if self._ahead:
                self._begin_next()
        return len(needed)

    def _needed(self) -> list[_Member]:
        return [member for member in self._members if member.program.is_needed]

    def _begin_next(self) -> None:
        bucket = self._before
        while bucket is not None and not bucket._may_begin():
            bucket = bucket._before
        if bucket is not None:
            bucket._begin()

    def _may_begin(self) -> bool:
        needed = self._needed()
        is_unchanged = all(member.program.input.is_as_it_was for member in needed)
        return bool(needed) and is_unchanged and not self._is_done

    def _begin(self) -> ParameterQueue:
        """Where the results will be, in the order of those that are needed."""
        if self._queue is not None:
            return self._queue
        queue = self._queue = parameter_queue()
        first, *others = needed = self._needed()
        program = first.program
        if not others:
            groups, cast = program.groups, program.cast
            begin_value(program.x, program.forward, groups, queue, 0, dtype=cast)
            return queue
        dims = [member.gathered_dim for member in needed if member.gathered_dim is not None]
        xs = [member.program.x for member in needed]
        begin_gathers(xs, dims, program.groups[0], queue, range(len(xs)), dtype=first.dtype)
        return queue


class ReuseRegistry:
    """Context of one forward: ``keep_before`` registers with the innermost one, and so do
    calls that run again (``recomputation.py``).

    Hooks on saved tensors are set from the first registration on, so that plans
    without any pay nothing.

    Args:
        ahead: whether what is in buckets is begun while backward computes with the bucket
            before it.
        name_of: what a tensor is called, for the error that somebody has written to it.
    """

    def __init__(self, ahead: bool = False, name_of: NameOf | None = None) -> None:
        self.name_of = name_of
        self.counts = ReuseCounts()
        self._ahead = ahead
        self._buckets: dict[int, _Bucket] = {}
        self._last_bucket: _Bucket | None = None
        self._remade: dict[int, Remade] = {}  # by address of the storage
        self._packs: Pack | None = None  # instead of ``hold``
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
        self._remade.clear()
        self._buckets.clear()
        self._last_bucket = None
        if self._token is not None:
            _ACTIVE.reset(self._token)

    def register(
        self,
        result: torch.Tensor,
        x: torch.Tensor,
        forward: Sequence[int],
        groups: Sequence[str],
        dtype: torch.dtype | None = None,
        bucket: int | None = None,
        gathered_dim: int | None = None,
    ) -> None:
        """What is saved of ``result`` shall be made again from ``x``.

        Args:
            result: what ``ops.reshard(x, forward, groups, ...)`` gave.
            x: the input of that reshard.
            forward: the encoded program, not empty.
            groups: its process group names.
            dtype: what ``x`` is cast to before.
            bucket: of parameters: numbers those that are made again together, in the order
                in which forward uses the first of each.
            gathered_dim: all that the programs of a bucket with several do is to gather this
                dim, over the ranks of one group.

        """
        program = _Program(x, forward, groups, dtype, self.name_of)
        source = _Source(result, program, self.counts)
        if bucket is not None:
            if bucket not in self._buckets:
                self._last_bucket = _Bucket(self._last_bucket, self._ahead)
                self._buckets[bucket] = self._last_bucket
            self._buckets[bucket].add(source, program, gathered_dim)
        self.add(source)

    def add(self, remade: Remade) -> None:
        """What is saved of it shall be made again."""
        freed = [key for key, other in self._remade.items() if other.storage.expired()]
        for key in freed:
            del self._remade[key]
        self._remade[remade.storage.cdata] = remade
        self.counts.registered += 1
        self._set_hooks()

    def _set_hooks(self) -> None:
        if self._hooks is None:
            self._hooks = saved_tensors_hooks(self._pack, _unpack)
            self._hooks.__enter__()

    def _pack(self, tensor: torch.Tensor) -> Held:
        return self.hold(tensor) if self._packs is None else self._packs(tensor)

    @contextmanager
    def packing_with(self, packs: Pack) -> Iterator[None]:
        """What autograd saves inside is given to ``packs``."""
        self._set_hooks()
        before, self._packs = self._packs, packs
        try:
            yield
        finally:
            self._packs = before

    def hold(self, tensor: torch.Tensor) -> Held:
        """What gives the tensor in backward: itself, unless it is made again."""
        address = address_of(tensor)
        remade = None if address is None else self._remade.get(address)
        if remade is not None and remade.dtype == tensor.dtype:
            return SavedTensor(remade, tensor)
        return Unchanged(tensor, self.name_of)


_ACTIVE: ContextVar[ReuseRegistry | None] = ContextVar("reuse_registry", default=None)


def active_registry() -> ReuseRegistry | None:
    """That of the forward that runs, if its backward may need something."""
    return _ACTIVE.get() if torch.is_grad_enabled() else None


def keep_before(
    result: torch.Tensor,
    x: torch.Tensor,
    forward: Sequence[int],
    groups: Sequence[str],
    dtype: torch.dtype | None = None,
    *,
    bucket: int | None = None,
    gathered_dim: int | None = None,
) -> None:
    """Registers a reshard's output with the active registry, if there is one.

    See ``ReuseRegistry.register``. Without gradients there is nothing to keep.
    """
    registry = active_registry()
    if registry is not None:
        registry.register(result, x, forward, groups, dtype, bucket, gathered_dim)


def _unpack(packed: Held) -> torch.Tensor:
    return packed.unpack()
