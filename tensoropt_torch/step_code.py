"""The integers that reshards are written as, in the words of ``csrc/common/step_code.h``: what the
planner gives, and operators of the runtime take. Whoever wants to know what they say asks here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

_INTS_PER_STEP = 6
_UNEVEN = 8  # a bit of the kind: so many integers follow as the one after the step says

Group = TypeVar("Group")


class StepKind(IntEnum):
    """What a step does."""

    ALL_GATHER = 0
    REDUCE_SCATTER = 1
    ALL_REDUCE = 2
    ALL_TO_ALL = 3
    SLICE = 4
    MASK = 5


@dataclass(frozen=True)
class Step(Generic[Group]):
    """One step on one rank.

    Attributes:
        dim, to_dim: -1 if the step has none.
        group: its axis set, or the name of its process group; None: it is local.
        size: how many ranks are in the group.
        index: of the rank there.
        is_uneven: parts of the tensor differ in size.
        parts, to_parts: then the sizes of those of its dims.
    """

    kind: StepKind
    dim: int
    to_dim: int
    group: Group | None
    size: int
    index: int
    is_uneven: bool = False
    parts: tuple[int, ...] = ()
    to_parts: tuple[int, ...] = ()


def steps_of(program: Sequence[int], groups: Sequence[Group]) -> list[Step[Group]]:
    """The steps of an encoded program; ``groups`` are those that it numbers."""
    found, at = [], 0
    while at < len(program):
        code, dim, to_dim, slot, size, index = program[at : at + _INTS_PER_STEP]
        at += _INTS_PER_STEP
        parts: tuple[int, ...] = ()
        to_parts: tuple[int, ...] = ()
        is_uneven = bool(code & _UNEVEN)
        if is_uneven:
            _, *numbers = program[at + 1 : at + 1 + program[at]]  # the first: elements
            parts, to_parts = tuple(numbers[:size]), tuple(numbers[size:])
            at += 1 + program[at]
        kind, group = StepKind(code & ~_UNEVEN), groups[slot] if slot >= 0 else None
        found.append(Step(kind, dim, to_dim, group, size, index, is_uneven, parts, to_parts))
    return found
