"""What a step does, as lists of actions that one executor runs (``module/executor.py``).

::

    schedule = in_micro_batches(2)
    schedule.call      # Hold, Forward(0), Backward(0, reduces=False), Forward(1), Backward(1), ...
    schedule.backward  # Deliver

The module's call runs the first list, and backward of what it returns the second. Another order
of work, such as that of the stages of a pipeline, is another list; a list with something else in it
needs an action here and what runs it there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

from tensoropt_torch.errors import TensorOptError


@dataclass(frozen=True)
class Hold:
    """Parameters that the micro-batches of a step share are resharded."""


@dataclass(frozen=True)
class Forward:
    """Of a micro-batch, or of the batch if that is the only one."""

    micro_batch: int


@dataclass(frozen=True)
class Backward:
    """Of a micro-batch. ``reduces``: gradients that are added up before the programs that send
    them to their parameters go through these, with all that has been added up."""

    micro_batch: int
    reduces: bool = True


@dataclass(frozen=True)
class Repeat:
    """A micro-batch that is simulated by the one before it: nothing runs, and its outputs are
    memory alone."""

    micro_batch: int


@dataclass(frozen=True)
class Release:
    """What was held and the parts of parameters are not needed any more."""


@dataclass(frozen=True)
class ReduceGradients:
    """What no program of the last backward could take is sent to its parameter."""


@dataclass(frozen=True)
class Join:
    """Outputs of micro-batches become those of the batch."""


@dataclass(frozen=True)
class AddKept:
    """Gradients that passes have kept are reduced where others come to them."""


@dataclass(frozen=True)
class Deliver:
    """Gradients that wait are given to the parameters. ``keeps``: as they are, not reduced,
    wherever they may stay so."""

    keeps: bool = False


Action = Hold | Forward | Backward | Repeat | Release | ReduceGradients | Join | AddKept | Deliver


@dataclass(frozen=True)
class Schedule:
    """The actions of one step.

    Attributes:
        call: what the call of the module does.
        backward: what backward of its outputs does. A ``Backward`` here is that of autograd
            itself, through the graph of a lone forward.
        is_lone: the call is one forward.

    Raises:
        TensorOptError: no step can be like that; says which action is wrong.
    """

    call: tuple[Action, ...]
    backward: tuple[Action, ...] = ()
    is_lone: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_lone", self.call == (Forward(0),))
        for error in _errors(self):
            raise TensorOptError(f"no step is like this: {error}; its actions are {self}")

    @property
    def micro_batches(self) -> int:
        """How many there are."""
        return sum(isinstance(action, Forward | Repeat) for action in self.call)

    @property
    def makes_gradients(self) -> bool:
        """Whether the call does."""
        return any(isinstance(action, Backward) for action in self.call)

    @property
    def adds_kept(self) -> bool:
        """Whether what passes have kept is looked at."""
        return any(isinstance(action, AddKept) for action in self.backward)

    @property
    def reduces(self) -> bool:
        """Whether gradients are in the layouts of their parameters afterwards."""
        made = [a for a in (*self.call, *self.backward) if isinstance(a, Backward)]
        return not made or made[-1].reduces

    def __str__(self) -> str:
        """As it is written in Python."""
        return f"{', '.join(map(str, self.call))} | {', '.join(map(str, self.backward))}"


def _errors(schedule: Schedule) -> Iterator[str]:
    forwards = [a.micro_batch for a in schedule.call if isinstance(a, Forward | Repeat)]
    backwards = [a for a in schedule.call if isinstance(a, Backward)]
    if not forwards or sorted(forwards) != list(range(len(forwards))):
        yield f"forwards are of micro-batches {forwards}, and each has one, from 0 on"
    begun: set[int] = set()
    for action in schedule.call:
        if isinstance(action, Forward):
            begun.add(action.micro_batch)
        elif isinstance(action, Backward):
            if action.micro_batch not in begun:
                yield f"{action} has no forward before it"
            begun.discard(action.micro_batch)
    if not backwards:
        return
    if begun:
        yield f"micro-batches {sorted(begun)} have no backward"
    if any(action.reduces for action in backwards[:-1]):
        yield "a backward reduces gradients to which later ones add"
    if schedule.call[0] != Hold():
        yield "gradients are made in the call, which begins by Hold()"
    keeps = [a.keeps for a in schedule.backward if isinstance(a, Deliver)]
    if keeps != [not backwards[-1].reduces]:
        yield "gradients that are made in the call are delivered once, and kept if none reduces"


# Steps whose backward is that of autograd.
FORWARD = Schedule((Forward(0),))
PLAIN = Schedule((Forward(0),), (Backward(0),))
KEEPING = Schedule((Forward(0),), (AddKept(), Backward(0, reduces=False)))
ADDING = Schedule((Forward(0),), (AddKept(), Backward(0)))


@functools.cache
def without_gradients(count: int) -> Schedule:
    """The forward of all micro-batches."""
    if count == 1:
        return FORWARD
    return Schedule((*map(Forward, range(count)), Join()))


@functools.cache
def in_micro_batches(count: int, reduces: bool = True, adds_kept: bool = False) -> Schedule:
    """Forward and backward of each, one after the other, so that what one keeps for backward is
    gone before the next begins. Without ``reduces`` all gradients stay where they are made;
    ``adds_kept``: passes before may have kept some."""
    steps: list[Action] = []
    for number in range(count):
        is_last = number == count - 1
        steps += [Forward(number), Backward(number, reduces=reduces and is_last)]
    late = (ReduceGradients(),) if reduces else ()
    kept = (AddKept(),) if adds_kept or not reduces else ()
    delivery = (*kept, Deliver(keeps=not reduces))
    return Schedule((Hold(), *steps, Release(), *late, Join()), delivery)


@functools.cache
def in_alike_micro_batches(schedule: Schedule) -> Schedule:
    """The same, where the first two micro-batches and the last are run. The first allocates what
    the others add to and the last one reduces it; all between do as the second does."""
    last = schedule.micro_batches - 1
    call: list[Action] = []
    for action in schedule.call:
        number = getattr(action, "micro_batch", 0)
        if not 1 < number < last:
            call.append(action)
        elif isinstance(action, Forward):
            call.append(Repeat(number))
    return Schedule(tuple(call), schedule.backward)
