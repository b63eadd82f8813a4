"""A user's constraints on the strategies of a model, as plain data: splits that are pinned and
splits that are forbidden, by patterns of names (docs/why-this-plan.md, Pins)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch.distributed.tensor import Placement, Replicate, Shard

from tensoropt_torch.config.records import Record, Text
from tensoropt_torch.errors import TensorOptError

ANY = "*"
WHOLE = "whole"
# A pin of this name is how many stages there are, and one of this value where a stage begins.
STAGES = "stages"
STAGE = "stage"

# One split, or one for each mesh axis: a placement of a parameter, ``S0`` or ``R``; or the
# name of an operator's dim.
Split = Placement | str
Pins = Mapping[str, Split | Sequence[Split] | int]

_PLACEMENT = re.compile(r"S\d+|R")
_TERM = re.compile(r"\*|[-\w]+|\+\d+")


@dataclass(frozen=True)
class Constraint(Record):
    """That what a pattern of names matches is split so (``pin``) or is not (``forbid``).

    ``value`` is a text such as ``S0`` or ``S0,R`` of parameters, ``h`` or ``b0,h`` of
    operators, ``whole`` of both.
    """

    kind: Literal["pin", "forbid"]
    pattern: Text
    value: Text

    def __str__(self) -> str:
        return f"{self.kind} '{self.pattern}' = '{self.value}'"

    @property
    def terms(self) -> list[str]:
        """The terms of the value: one for all mesh axes or one for each, or what is forbidden."""
        return self.value.split(",")

    @property
    def of_parameters(self) -> bool:
        """Whether it says something of parameters."""
        return self.value == WHOLE or self._names_placements

    @property
    def of_operators(self) -> bool:
        """Whether it says something of operators."""
        return not self._names_placements

    @property
    def _names_placements(self) -> bool:
        return any(_PLACEMENT.fullmatch(term) for term in self.terms)

    def allows(self, entries: Sequence[str]) -> bool:
        """Whether a config may be taken, by its entries for each mesh axis: ``S0``, ``R``,
        the dim that an operator splits, ``-`` or ``+0`` where it splits nothing."""
        whole = all(entry in ("R", "-") or entry.startswith("+") for entry in entries)
        if self.kind == "forbid":
            splits = [term for term in self.terms if term not in (WHOLE, "R")]
            may_be_whole = len(splits) == len(self.terms)
            return (may_be_whole or not whole) and not any(term in entries for term in splits)
        if self.value == WHOLE:
            return whole
        if len(self.terms) > 1:
            return len(self.terms) == len(entries) and all(
                term in (ANY, entry) for term, entry in zip(self.terms, entries, strict=True)
            )
        if self._names_placements:
            return all(entry == self.value for entry in entries)
        return self.value in entries


@dataclass(frozen=True)
class StagePins:
    """What is pinned of how a model is cut.

    Attributes:
        number: of stages; None: any.
        begins: modules with each of which a stage begins, in the order in which they run.
    """

    number: int | None = None
    begins: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is pinned."""
        return self.number is not None or bool(self.begins)

    def __str__(self) -> str:
        numbers = [] if self.number is None else [f"pin '{STAGES}' = {self.number}"]
        return " and ".join([*numbers, *(f"pin '{name}' = '{STAGE}'" for name in self.begins)])

    def allows(self, stages: int) -> bool:
        """Whether there may be so many stages."""
        return stages > len(self.begins) and self.number in (None, stages)

    def allows_up_to(self, most: int) -> bool:
        """Whether there may be some number of stages, of up to so many."""
        return any(self.allows(stages) for stages in range(1, most + 1))


def constraints_of(pin: Pins | None, forbid: Pins | None) -> tuple[Constraint, ...]:
    """The constraints of a user on splits, pins first.

    Raises:
        TensorOptError: something is no constraint.
    """
    stage_pins_of(pin, forbid)
    return (*_constraints("pin", pin), *_constraints("forbid", forbid))


def stage_pins_of(pin: Pins | None, forbid: Pins | None = None) -> StagePins:
    """What a user has pinned of stages.

    Raises:
        TensorOptError: something of it is not allowed.
    """
    for name, value in forbid.items() if isinstance(forbid, Mapping) else ():
        if _is_of_stages(name, value):
            raise TensorOptError(
                f"forbid '{name}' = {value!r} is not supported: pin how many stages there are, or "
                "what they begin with"
            )
    of_stages = {
        name: value
        for name, value in (pin.items() if isinstance(pin, Mapping) else ())
        if _is_of_stages(name, value)
    }
    begins = tuple(name for name, value in of_stages.items() if value == STAGE)
    number = of_stages.get(STAGES)
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if number is not None and (not isinstance(number, int) or number < 2):
        raise TensorOptError(
            f"pin '{STAGES}' = {number!r} is not allowed; give a number of stages, 2 or more, or "
            f"pin modules that stages begin with, as in {{'layers.4': '{STAGE}'}}"
        )
    if number is not None and number <= len(begins):
        raise TensorOptError(
            f"pin '{STAGES}' = {number} and {len(begins)} modules that stages begin with "
            f"({', '.join(begins)}): of so many stages {number - 1} begin inside of the model"
        )
    return StagePins(number, begins)


def _is_of_stages(name: Any, value: Any) -> bool:
    return value == STAGE or (name == STAGES and (isinstance(value, int) or _is_number(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, str) and value.isdecimal()


def _constraints(kind: Literal["pin", "forbid"], given: Any) -> list[Constraint]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise TensorOptError(
            f"{kind} = {given!r} is not allowed: it must be a dict from patterns of names to "
            f"splits, such as {{'embed.weight': Shard(0)}}"
        )
    return [
        Constraint(kind, _pattern(kind, name), _value(kind, name, v))
        for name, v in given.items()
        if not _is_of_stages(name, v)
    ]


def _pattern(kind: str, name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise TensorOptError(
            f"{kind} names {name!r}, which is no pattern of names; give that of a parameter, an "
            "operator or a module, such as 'blocks.*.fc1.weight'"
        )
    return name


def _value(kind: str, name: str, value: Any) -> str:
    many = isinstance(value, Sequence) and not isinstance(value, str)
    parts = value if many else [value]
    terms = [term for part in parts for term in _texts(part)]
    placements = [term for term in terms if _PLACEMENT.fullmatch(term)]
    free = (ANY, WHOLE) if kind == "forbid" else (ANY,)
    others = [term for term in terms if term not in (*placements, *free)]
    wrong = [term for term in terms if not _TERM.fullmatch(term)]
    stray = terms == [ANY] or (kind == "forbid" and ANY in terms)
    mixed = bool(placements and others) or (kind == "pin" and WHOLE in terms and len(terms) > 1)
    if not terms or wrong or stray or mixed:
        raise TensorOptError(
            f"{kind} '{name}' = {value!r} is not allowed; for parameters give Shard(dim), "
            "Replicate(), or a text such as 'S0' or 'R'; for operators the name of a dim, such as "
            "'n', or 'whole'"
            + ("; several in a list" if kind == "forbid" else "; or one for each mesh axis")
        )
    return ",".join(terms)


def _texts(part: Any) -> list[str]:
    """The terms of one placement or text; what is neither becomes no term."""
    if type(part) is Shard and part.dim >= 0:
        return [f"S{part.dim}"]
    if isinstance(part, Replicate):
        return ["R"]
    return [term.strip() for term in part.split(",")] if isinstance(part, str) else [""]
