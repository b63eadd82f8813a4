"""Where each rank of the job is: noted as it goes, and read when a rank waits in vain.

A rank notes what it begins in the store of the job, a few bytes and some microseconds each time::

    with doing("save"):                              # also says how a wait inside failed
        ...
    note(Place("the backward of call 3 of GPT", "backward", 3))

When a wait for other ranks fails, each that waited reads the notes of all
(``lost_ranks.py``). Jobs whose store is no ``TCPStore`` have no notes.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from tensoropt_torch.runtime.processes import Process, this_process
from tensoropt_torch.runtime.processes import State as ProcessState

KEY = "tensoropt/where/{}"
PROCESS_KEY = "tensoropt/process/{}"
STORE_TIMEOUT = timedelta(seconds=5)

State = Literal["began", "past", "waits", "told", "ended"]


@dataclass(frozen=True)
class Place:
    """What a rank does.

    Attributes:
        what: in words, after which "of rank 3" may follow.
        kind: ``forward`` or ``backward`` of a call of a module, else the function's name.
        call: which call of the module, from 1.
        since: when it was begun, in seconds since the epoch.
    """

    what: str
    kind: str
    call: int = 0
    since: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Note:
    """What others know of a rank: where it was last, and whether it is ``past`` that, has waited
    there in vain (``told``: and has read where the others are) or has ended; ``error`` is what
    ended it, or what it has met there, though its program may have caught it. ``process`` is what
    whoever reads the note sees of the rank's process."""

    place: Place
    state: State = "began"
    error: str = ""
    process: ProcessState = "unknown"


class Board:
    """The notes of the job, through a connection of its own to its store."""

    def __init__(self, group: dist.ProcessGroup, store: Store) -> None:
        self.group = group
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.place = Place("nothing yet", "nothing")
        self.error = ""  # what this rank has met where it is
        self.is_doing = False
        self.has_waited = False
        self._store: Store | None = store
        self._process = os.getpid()
        self._processes: dict[int, Process] = {}
        self._set(PROCESS_KEY, asdict(this_process()))

    @property
    def has_store(self) -> bool:
        """Whether the store may be part of this process, and end with it."""
        return self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def write(self, state: State = "began", error: str = "") -> None:
        """Of this rank, where it is. What cannot be written is left out."""
        if os.getpid() == self._process:
            # As ``asdict`` of a note, which copies: a step writes two.
            self._set(KEY, {"place": vars(self.place), "state": state, "error": error})

    def _set(self, key: str, record: dict[str, Any]) -> None:
        if self._store is None:
            return
        try:
            self._store.set(key.format(self.rank), json.dumps(record))
        except RuntimeError:  # who has the store is gone
            self._store = None

    def read(self) -> dict[int, Note]:
        """By rank, of those that have begun something.

        Raises:
            RuntimeError: the store cannot be asked.
        """
        if self._store is None:
            raise RuntimeError("the store is gone")
        keys = {rank: KEY.format(rank) for rank in range(self.size)}
        there = [rank for rank, key in keys.items() if self._store.check([key])]
        return {rank: self._note(rank, self._store.get(keys[rank])) for rank in there}

    def _note(self, rank: int, text: bytes) -> Note:
        assert self._store is not None
        if rank not in self._processes:  # noted before the first note
            process = json.loads(self._store.get(PROCESS_KEY.format(rank)))
            self._processes[rank] = Process(**process)
        known: dict[str, Any] = json.loads(text)
        known["process"] = self._processes[rank].state()
        return Note(Place(**known.pop("place")), **known)


_board: Board | None = None
_without: dist.ProcessGroup | None = None  # the job that has no notes


def board() -> Board | None:
    """Of the job that runs; None in one of a single process, or without a ``TCPStore``."""
    global _board, _without
    world = dist.group.WORLD if dist.is_available() else None
    if world is None or (_board is not None and _board.group is world):
        return _board
    if _without is not world:
        _board = _board_of(world)
        _without = world if _board is None else None
    return _board


def _board_of(world: dist.ProcessGroup) -> Board | None:
    if world.size() == 1:
        return None
    try:
        store: Any = dist.distributed_c10d._get_default_store()
        if not isinstance(store._underlying_non_prefix_store, TCPStore):
            return None
        own: Store = store.clone()  # a client that keeps no server, and has its own timeout
        own.set_timeout(STORE_TIMEOUT)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return Board(world, own)


def note(place: Place, error: BaseException | None = None) -> None:
    """Something that this rank has begun, or has met an error in."""
    if torch.compiler.is_compiling():
        return
    notes = board()
    if notes is not None:
        notes.place, notes.error = place, "" if error is None else _text_of(error)
        notes.write(error=notes.error)


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


@contextmanager
def at(place: Place) -> Iterator[None]:
    """Inside, this rank is there; afterwards where it was before, or past that. Forward is
    followed by backward so soon that its end is not worth a note."""
    notes = board()
    if notes is None:
        yield
        return
    before = notes.place, notes.is_doing
    notes.place, notes.error, notes.is_doing = place, "", True
    notes.write()
    try:
        yield
    finally:
        notes.is_doing = before[1]
        if before[1]:
            notes.place = before[0]
        elif place.kind != "forward" and not notes.has_waited:
            notes.write("past")


def _say_ended() -> None:
    """The last note of a process, with the exception that ends it; one that has waited in vain
    has said so."""
    if _board is None or _board.has_waited:
        return
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    _board.write("ended", _board.error if error is None else _text_of(error))


atexit.register(_say_ended)
