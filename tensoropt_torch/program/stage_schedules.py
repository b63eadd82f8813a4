"""What the ranks of each stage of a pipeline do in a step, as lists of actions.

::

    first, second = one_forward_one_backward(stages=2, micro_batches=3)
    first.call    # Hold, Forward(0), SendValues(0), Forward(1), SendValues(1),
                  # ReceiveGradients(0), Backward(0), Forward(2), ...

Stage s of S has V chunks of the graph, which is cut into S V parts: part v S + s is its chunk v.
Sends do not wait for those who receive; so a list has no deadlock if the lists of all stages
together can be run so (``stage_times.py`` runs them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.program.schedule import (
    Deliver,
    Hold,
    Join,
    ReduceGradients,
    Release,
    Repeat,
)


@dataclass(frozen=True)
class RunForward:
    """Of a micro-batch by a chunk."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class RunBackward:
    """Of a micro-batch by a chunk. ``reduces``: as of ``Backward``, for the parameters of the
    chunk."""

    micro_batch: int
    chunk: int = 0
    reduces: bool = False


@dataclass(frozen=True)
class ReceiveValues:
    """What a chunk's forward takes of the part before is there."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class SendValues:
    """What a chunk's forward has made is sent to the part after."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class ReceiveGradients:
    """The gradients of what a chunk has sent are there."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class SendGradients:
    """Those of what a chunk has received are sent to the part before."""

    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class AwaitSends:
    """All that was sent has arrived."""


@dataclass(frozen=True)
class SumTied:
    """Gradients of parameters that several stages have are added up."""


@dataclass(frozen=True)
class ShareOutputs:
    """All stages get the outputs of the model, each of the stage that makes it."""


Compute = RunForward | RunBackward
Transfer = ReceiveValues | SendValues | ReceiveGradients | SendGradients
StageAction = (
    Compute
    | Transfer
    | AwaitSends
    | SumTied
    | ShareOutputs
    | Hold
    | Release
    | ReduceGradients
    | Join
    | Deliver
    | Repeat
)
ScheduleName = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True)
class StageSchedule:
    """The actions of one stage in one step.

    Attributes:
        stage, stages: which it is, and how many there are.
        micro_batches, chunks: how many there are.
        call: what the call of the module does.
        backward: what backward of its outputs does: it gives the gradients to the parameters, and
            with GPipe makes them as well.
    """

    stage: int
    stages: int
    micro_batches: int
    chunks: int
    call: tuple[StageAction, ...]
    backward: tuple[StageAction, ...]

    @property
    def actions(self) -> tuple[StageAction, ...]:
        """All of a step."""
        return (*self.call, *self.backward)

    @property
    def computes(self) -> list[Compute]:
        """Its forwards and backwards, in their order."""
        return [action for action in self.actions if isinstance(action, RunForward | RunBackward)]

    @property
    def makes_gradients(self) -> bool:
        """Whether there is a backward for each forward."""
        return any(isinstance(action, RunBackward) for action in self.actions)

    @property
    def is_deferred(self) -> bool:
        """Whether gradients are made in backward of what the call returns, so of whatever loss is
        computed of that, and scaled as it is."""
        return any(isinstance(action, RunBackward) for action in self.backward)

    @property
    def in_flight(self) -> int:
        """The most forwards of chunks whose backward is to come."""
        most = now = 0
        for action in self.computes:
            now += 1 if isinstance(action, RunForward) else -1
            most = max(most, now)
        return most

    def in_flight_of(self, chunk: int) -> int:
        """The most forwards of a chunk whose backward is to come."""
        own = (action for action in self.computes if action.chunk == chunk)
        return max(accumulate(1 if isinstance(action, RunForward) else -1 for action in own))

    def last_backward(self, chunk: int) -> int | None:
        """The micro-batch in whose backward gradients of the chunk's parameters are reduced."""
        own = (a for a in self.actions if isinstance(a, RunBackward) and a.chunk == chunk)
        return next((action.micro_batch for action in own if action.reduces), None)

    def __str__(self) -> str:
        """In short, such as ``F0 F1 B0 F2 B1 B2``; chunks follow a dot."""
        return " ".join(map(_short, self.computes))


def _short(action: Compute) -> str:
    letter = "F" if isinstance(action, RunForward) else "B"
    return f"{letter}{action.micro_batch}" + (f".{action.chunk}" if action.chunk else "")


def gpipe(stages: int, micro_batches: int) -> tuple[StageSchedule, ...]:
    """All forwards, and in backward of what the call returns all backwards: all micro-batches
    are in flight."""
    _check(stages, micro_batches)
    return tuple(_deferred(stage, stages, micro_batches) for stage in range(stages))


def one_forward_one_backward(stages: int, micro_batches: int) -> tuple[StageSchedule, ...]:
    """A backward as soon as there can be one: of stage s ``min(M, S - s)`` micro-batches are in
    flight."""
    _check(stages, micro_batches)
    forwards = [RunForward(number) for number in range(micro_batches)]
    backwards = [RunBackward(number) for number in range(micro_batches)]
    return tuple(
        _scheduled(
            stage,
            stages,
            micro_batches,
            1,
            _alternating(forwards, backwards, stages - 1 - stage),
        )
        for stage in range(stages)
    )


def interleaved(stages: int, micro_batches: int, chunks: int) -> tuple[StageSchedule, ...]:
    """1F1B with several chunks in each stage: shorter waits, more in flight and more sent.

    Micro-batches run in rounds of as many as there are stages. Where the last round is not full,
    it runs as if it were, and what is not there is left out: what remains waits for no more than
    before.
    """
    _check(stages, micro_batches, chunks)
    rounds = range(0, micro_batches, stages)
    slots = [
        (start + index, chunk)
        for start in rounds
        for chunk in range(chunks)
        for index in range(stages)
    ]
    forwards = [RunForward(number, chunk) for number, chunk in slots]
    backwards = [RunBackward(number, chunks - 1 - chunk) for number, chunk in slots]
    found = []
    for stage in range(stages):
        ahead = (chunks - 1) * stages + 2 * (stages - 1 - stage)
        order = _alternating(forwards, backwards, ahead)
        own = [action for action in order if action.micro_batch < micro_batches]
        found.append(_scheduled(stage, stages, micro_batches, chunks, own))
    return tuple(found)


def forward_only(stages: int, chunks: int) -> tuple[StageSchedule, ...]:
    """The whole batch, from part to part, without gradients."""
    _check(stages, 1, chunks)
    forwards = [RunForward(0, chunk) for chunk in range(chunks)]
    return tuple(_scheduled(stage, stages, 1, chunks, forwards) for stage in range(stages))


def schedules_of(
    name: ScheduleName, stages: int, micro_batches: int, chunks: int = 1
) -> tuple[StageSchedule, ...]:
    """Of all stages, by name.

    Raises:
        TensorOptError: there is no such schedule; only the interleaved one has several chunks.
    """
    if name == "interleaved":
        return interleaved(stages, micro_batches, chunks)
    makers: Mapping[str, Callable[[int, int], tuple[StageSchedule, ...]]] = {
        "1f1b": one_forward_one_backward,
        "gpipe": gpipe,
    }
    if name not in makers:
        raise TensorOptError(
            f"schedule = {name!r} is not known; it may be {', '.join([*makers, 'interleaved'])}"
        )
    if chunks != 1:
        raise TensorOptError(
            f"schedule '{name}' has one chunk in each stage, and {chunks} are asked for; take "
            "'interleaved', or chunks=1"
        )
    return makers[name](stages, micro_batches)


def alike_left_out(schedule: StageSchedule) -> StageSchedule:
    """The same, where of the micro-batches that run while as many as ever are in flight those in
    the middle are not run: all do what the one before does. Their outputs are repeated. Schedules
    of several chunks stay as they are, and so do those that have all in flight."""
    stages, count = schedule.stages, schedule.micro_batches
    run = schedule.in_flight + 3  # of which two are sending gradients
    if schedule.chunks > 1 or run >= count or not schedule.makes_gradients:
        return schedule
    short = one_forward_one_backward(stages, run)[schedule.stage]
    call: list[StageAction] = []
    for action in short.call:
        number = getattr(action, "micro_batch", 0)
        if number >= run - 2:  # the last two: while the one before it runs, the last is received
            if action == RunForward(run - 2):
                call += map(Repeat, range(run - 2, count - 2))
            renamed: Any = action
            action = replace(renamed, micro_batch=number + count - run)
        call.append(action)
    return replace(schedule, call=tuple(call))


def in_flight(
    name: ScheduleName, part: int, stages: int, micro_batches: int, chunks: int = 1
) -> int:
    """How many micro-batches wait for their backward in a part of the graph, at most."""
    chunk, stage = divmod(part, stages)
    return schedules_of(name, stages, micro_batches, chunks)[stage].in_flight_of(chunk)


def _check(stages: int, micro_batches: int, chunks: int = 1) -> None:
    numbers = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
    for name, number in numbers.items():
        if number < 1:
            raise TensorOptError(f"{name} = {number} is not allowed; give 1 or more")


def _alternating(
    forwards: Sequence[RunForward], backwards: Sequence[RunBackward], ahead: int
) -> list[Compute]:
    """So many forwards first, then one forward and one backward in turn, then the rest."""
    ahead = min(ahead, len(forwards))
    order: list[Compute] = list(forwards[:ahead])
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + list(backwards[len(forwards) - ahead :])


def _scheduled(
    stage: int, stages: int, micro_batches: int, chunks: int, order: Sequence[Compute]
) -> StageSchedule:
    """With transfers around, and what a step begins and ends by."""
    last = {a.chunk: a.micro_batch for a in order if isinstance(a, RunBackward)}  # of backwards
    call: list[StageAction] = [Hold()]
    for action in order:
        call += _with_transfers(action, stage, stages, chunks, last)
    end: list[StageAction] = [ReduceGradients(), SumTied()] if last else []
    call += [Release(), *end, AwaitSends(), Join(), ShareOutputs()]
    backward = (Deliver(),) if last else ()
    return StageSchedule(stage, stages, micro_batches, chunks, tuple(call), backward)


def _deferred(stage: int, stages: int, micro_batches: int) -> StageSchedule:
    """Of ``gpipe``."""
    last = {0: micro_batches - 1}
    call: list[StageAction] = [Hold()]
    backward: list[StageAction] = []
    for number in range(micro_batches):
        call += _with_transfers(RunForward(number), stage, stages, 1, last)
        backward += _with_transfers(RunBackward(number), stage, stages, 1, last)
    call += [AwaitSends(), Join(), ShareOutputs()]
    backward += [Release(), ReduceGradients(), SumTied(), AwaitSends(), Deliver()]
    return StageSchedule(stage, stages, micro_batches, 1, tuple(call), tuple(backward))


def _with_transfers(
    action: Compute, stage: int, stages: int, chunks: int, last: Mapping[int, int]
) -> Iterator[StageAction]:
    number, chunk = action.micro_batch, action.chunk
    part = chunk * stages + stage
    is_first, is_last = part == 0, part == stages * chunks - 1
    if isinstance(action, RunForward):
        if not is_first:
            yield ReceiveValues(number, chunk)
        yield action
        if not is_last:
            yield SendValues(number, chunk)
        return
    if not is_last:
        yield ReceiveGradients(number, chunk)
    yield RunBackward(number, chunk, reduces=last[chunk] == number)
    if not is_first:
        yield SendGradients(number, chunk)
