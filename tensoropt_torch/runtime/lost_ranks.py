"""The error of a rank that waits for others in vain: where each of them is, and what is likely.

::

    with waiting():             # around a collective of the runtime
        work.wait()
    with doing("save"):         # around a public function that is collective
        ...

Collectives of the C++ operators come here as well, in forward and in backward, through the
operator ``tensoropt::lost_ranks``. The time limit is that of the process group; reading the
notes takes a few seconds more.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.whereabouts import Board, Note, Place, at, board, note

GRACE_S = 2.0  # for the notes of ranks whose waits end a little later
READING_S = 5.0  # for a store that does not answer
POLL_S = 0.05
FORWARD, BACKWARD = "forward", "backward"
TRAINING = (FORWARD, BACKWARD, "agreement", "nothing")
# How errors of Gloo, and of PyTorch's own layer, are told from others.
_WORDS = ("gloo/", "Connection closed by peer", "Connection reset by peer")


class LostRanksError(TensorOptError):
    """Other ranks did not come to where this one waited for them. Nothing can be exchanged
    after it."""


class WaitEndedError(LostRanksError):
    """A wait has ended inside of ``waits_may_end``, for this ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a wait for other ranks has ended: {_first_line(reason)}")
        self.reason = reason


_waits_may_end = 0  # how many are around; of the process, since backward may have its own threads


@contextmanager
def waits_may_end() -> Iterator[None]:
    """Inside, a wait that fails raises ``WaitEndedError`` at once: another rank may have left the
    groups on purpose, which the ranks tell each other afterwards. If none has, that is the error
    of ``lost_ranks``."""
    global _waits_may_end
    _waits_may_end += 1
    try:
        yield
    except RuntimeError as error:  # of a collective that could not begin
        if not is_of_a_wait(error):
            raise
        raise WaitEndedError(str(error)) from None
    finally:
        _waits_may_end -= 1


@contextmanager
def waiting() -> Iterator[None]:
    """Around collectives.

    Raises:
        LostRanksError: in place of the error of a collective.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_of_a_wait(error):
            raise
        raise lost_ranks(str(error)) from None  # its first line has Gloo's words


@contextmanager
def doing(name: str) -> Iterator[None]:
    """Around a function that is collective.

    Raises:
        LostRanksError: a wait for other ranks failed inside.
    """
    with being(Place(name, name)):
        yield


@contextmanager
def being(place: Place) -> Iterator[None]:
    """As ``doing``, in words of its own."""
    with at(place), waiting():
        yield


class CallsOfModule:
    """Numbers the calls of a module, from 1, and notes what the rank does of them.

    ::

        with calls.forward():
            outputs = ...
        calls.note_backward(outputs)
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._number = 0
        self._ended = 0  # the last call whose backward may not run any more

    def forward(self) -> AbstractContextManager[None]:
        """Of the next call."""
        self._number += 1
        return being(self._place(FORWARD))

    def note_backward(self, outputs: Any) -> None:
        """When backward comes to the outputs of this call."""
        if torch.compiler.is_compiling() or board() is None:
            return
        number = self._number

        def begun(_: Any) -> None:
            if number <= self._ended:
                raise TensorOptError(
                    f"backward of call {number} of {self._module}, which was made before move_to: "
                    "its gradients have the layouts of the plan before; call the module again"
                )
            note(self._place(BACKWARD, number))

        tensors = (leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
        for node in {tensor.grad_fn for tensor in tensors}:
            if node is not None:
                node.register_prehook(begun)

    def end_backward(self) -> None:
        """From now on the backward of calls that were made so far is an error."""
        self._ended = self._number

    def _place(self, kind: str, number: int = 0) -> Place:
        number = number or self._number
        return Place(f"the {kind} of call {number} of {self._module}", kind, number)


def is_of_a_wait(error: RuntimeError) -> bool:
    """Whether it says that a collective has failed."""
    return isinstance(error, dist.DistError) or _tells_of_a_wait(str(error))


def _tells_of_a_wait(text: str) -> bool:
    return any(words in text for words in _WORDS)


def lost_ranks(reason: str) -> LostRanksError:
    """The error of this rank, whose wait has failed for this reason; other ranks hear of it."""
    if _waits_may_end:
        return WaitEndedError(reason)
    first_line = _first_line(reason)
    notes = board()
    if notes is None:
        return LostRanksError(
            f"waited for other ranks in vain: {first_line}. Where they are is not known; all "
            "ranks have to make the same calls in the same order"
        )
    waited_s = time.time() - notes.place.since
    if not notes.is_doing and notes.place.kind not in (FORWARD, BACKWARD):
        notes.place = Place(f"an agreement after {notes.place.what}", "agreement")
    notes.write("waits")
    found = _read(notes)
    own = Note(notes.place, "waits")
    text = (
        f"rank {notes.rank} has waited for other ranks in {own.place.what}, begun at "
        f"{_clock(own.place.since)}, {waited_s:.0f} s ago. "
    )
    if found is None:
        return LostRanksError(
            f"{text}Where they are cannot be told: the store of the job does not answer, so the "
            "process that has it, that of rank 0 unless torchrun has it, may have ended. "
            f"({first_line})"
        )
    found[notes.rank] = replace(own, process="runs")
    others = "; ".join(
        _describe(rank, found.get(rank)) for rank in range(notes.size) if rank != notes.rank
    )
    return LostRanksError(
        f"{text}{others}. Likely: {likely(found, notes.size, reason)}. ({first_line})"
    )


def _first_line(reason: str) -> str:
    """Without the place in the sources of Gloo, and its advice."""
    text = re.sub(r"^\[\S+/gloo/\S+\]\s*", "", reason.strip())
    return text.splitlines()[0].partition(". This is typically")[0] if text else "no reason"


def _read(notes: Board) -> dict[int, Note] | None:
    """In a thread, since a store whose host is gone may never answer. None if it does not.

    Who has the store stays until the others have read it.
    """
    grace_s = 0.0 if notes.has_waited else GRACE_S
    notes.has_waited = True
    found: list[dict[int, Note]] = []

    def read() -> None:
        end = time.monotonic() + grace_s
        try:
            while True:
                found.append(notes.read())
                if _is_all(notes, found[-1]) or time.monotonic() > end:
                    return
                time.sleep(POLL_S)
        except RuntimeError:
            return

    thread = threading.Thread(target=read, name="tensoropt-notes", daemon=True)
    thread.start()
    thread.join(grace_s + READING_S)
    notes.write("told")
    return found[-1] if found else None


def _is_all(notes: Board, found: Mapping[int, Note]) -> bool:
    """Whether there is nothing to wait for: all ranks have said their last."""
    known = [note for rank, note in found.items() if rank != notes.rank]
    others = [note.state for note in known if not _is_gone(note)]
    if len(known) + 1 < notes.size or not {"began", "past"}.isdisjoint(others):
        return False
    return not (notes.has_store and "waits" in others)


def _describe(rank: int, note: Note | None) -> str:
    if note is None:
        return f"rank {rank} has begun nothing yet"
    place = note.place
    if note.state in ("waits", "told"):
        return f"rank {rank} waits in {place.what}, begun at {_clock(place.since)}"
    if note.state == "ended":
        how = f" with {note.error}" if note.error else ""
        return f"rank {rank} has ended{how}, after {place.what}"
    if note.state == "past":
        return f"rank {rank} is past {place.what}, begun at {_clock(place.since)}"
    if note.error:
        return f"rank {rank} has failed in {place.what} with {note.error}"
    if note.process in ("gone", "stopped"):
        return (
            f"rank {rank} began {place.what} at {_clock(place.since)}, and its process is "
            f"{note.process}"
        )
    return (
        f"rank {rank} began {place.what} at {_clock(place.since)}, and nothing of ours after that"
    )


def likely(notes: Mapping[int, Note], size: int, reason: str = "") -> str:
    """What went wrong, by where the ranks are, and by the reason why the wait of one failed."""
    failed = [rank for rank, note in notes.items() if _has_failed(note)]
    if failed:
        return (
            f"the error of {_ranks(failed)}, which its own output tells: mend that; where data may "
            "be damaged, let all ranks leave out the same batch"
        )
    gone = [rank for rank, note in notes.items() if _is_gone(note)]
    if gone:
        return (
            f"the process of {_ranks(gone)} was killed, as where memory runs out, or has crashed: "
            "look at its output, torchrun's, and the system's log"
        )
    stopped = [rank for rank, note in notes.items() if note.process == "stopped"]
    if stopped:
        return (
            f"the process of {_ranks(stopped)} is stopped, as by SIGSTOP or a debugger: end it, or "
            "let it go on earlier"
        )
    alone = _alone(notes)
    if alone is not None:
        name, ranks = alone
        return (
            f"{name} is called on {_ranks(ranks)} only, as behind `if rank == 0:`; it is "
            "collective: call it on all ranks alike, also where only rank 0 needs what it does"
        )
    ended = [rank for rank, note in notes.items() if note.state == "ended"]
    if ended:
        return (
            f"{_ranks(ended)} had fewer batches, or left the loop early: give all ranks as many "
            "(a DistributedSampler, drop_last=True), and decide on all alike when to stop"
        )
    return _likely_in_steps(notes, size, "by peer" in reason)


def _is_gone(note: Note) -> bool:
    """Whether its process has ended without a word."""
    return note.process == "gone" and note.state in ("began", "past")


def _has_failed(note: Note) -> bool:
    """By itself: not since it waited for others, in a collective of the program's own."""
    is_over = note.state in ("began", "ended")
    return is_over and bool(note.error) and not _tells_of_a_wait(note.error)


def _alone(notes: Mapping[int, Note]) -> tuple[str, list[int]] | None:
    """A function that some ranks are in, while others are in steps or have ended."""
    for found in notes.values():
        name = found.place.kind
        ranks = [rank for rank, other in notes.items() if _is_in(other, name)]
        if name not in TRAINING and 0 < len(ranks) < len(notes):
            return name, ranks
    return None


def _is_in(note: Note, name: str) -> bool:
    return note.place.kind == name and note.state not in ("past", "ended")


def _likely_in_steps(notes: Mapping[int, Note], size: int, closed: bool) -> str:
    away = [
        rank for rank in range(size) if rank not in notes or notes[rank].state in ("began", "past")
    ]
    places = [note.place for rank, note in notes.items() if rank not in away]
    kinds = {place.kind for place in places}
    all_run = len(notes) == size and all(note.process == "runs" for note in notes.values())
    same_place = not away and len({place.what for place in places}) == 1
    if closed and all_run and (same_place or all(n.state != "told" for n in notes.values())):
        return (
            "the network has closed a connection, or a rank has destroyed the process group, since "
            "the processes of all ranks run: start the job again from its last checkpoint"
        )
    if same_place:
        return "the network is slower than the time limit allows; init(timeout_s=...) gives it more"
    if kinds == {FORWARD, BACKWARD}:
        return (
            "backward is not called as often on all ranks: one leaves it out, as where its loss is "
            "not finite, or calls it once more"
        )
    if len(away) == size - 1 and closed:  # by one of them: nobody else has ended its wait
        one = "one of the processes of" if len(away) > 1 else "the process of"
        return (
            f"{one} {_ranks(away)} was killed, as where memory runs out, has crashed, or "
            "has destroyed the process group: look at its output, torchrun's, and the system's log"
        )
    if away:
        killed = "was killed, " if closed else ""
        return (
            f"{_ranks(away)} {killed}left out a batch or left the loop early, or is still busy "
            "with something else: give all ranks as many batches, and where one needs longer than "
            "the others init(timeout_s=...)"
        )
    return "the ranks go different ways: make the same calls in the same order on all ranks"


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _raise(reason: str) -> NoReturn:
    raise lost_ranks(reason)


# What C++ operators call where a wait of theirs fails. Kept: it ends with the object.
_LIBRARY: Any = torch.library.Library("tensoropt", "IMPL")  # type: ignore[no-untyped-call]
_LIBRARY.impl("lost_ranks", _raise, "CompositeImplicitAutograd")
