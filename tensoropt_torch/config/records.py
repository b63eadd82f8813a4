"""Plain data, as TOML and JSON files have it, made into dataclasses and checked by their
annotations (pydantic does the checking).

A dataclass that files describe is a ``Record``. Its annotations say what is allowed; what
messages say of it stands beside that, and a ``Hint`` tells what to try::

    @dataclass(frozen=True)
    class Link(Record):
        latency_s: Annotated[NotNegative, Hint("give seconds, such as 5e-6")]

    parse_record(Link, {"latency_s": -1}, "file 'my.toml'")
    # TensorOptError: file 'my.toml': latency_s = -1 is not allowed; it must be a finite
    # number, 0 or above; give seconds, such as 5e-6
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from tensoropt_torch.errors import TensorOptError, close_match

T = TypeVar("T")
R = TypeVar("R", bound="Record")
Location = tuple[int | str, ...]

_LONGEST = 100  # characters of a value in a message


class Record:
    """A dataclass that files describe: keys that are no fields are refused."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True
    )


@dataclasses.dataclass(frozen=True)
class Must:
    """What messages say that a value must be."""

    be: str


@dataclasses.dataclass(frozen=True)
class Hint:
    """What messages say to try."""

    text: str


Text = Annotated[str, Strict(), Field(pattern=r"\S"), Must("a text that is not empty")]
Count = Annotated[int, Strict(), Field(ge=1), Must("a whole number of at least 1")]
Bytes = Annotated[int, Strict(), Field(ge=0), Must("a whole number, 0 or above")]
_Finite = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Finite = Annotated[_Finite, Must("a finite number")]
Positive = Annotated[_Finite, Field(gt=0), Must("a finite number above 0")]
NotNegative = Annotated[_Finite, Field(ge=0), Must("a finite number, 0 or above")]
Fraction = Annotated[_Finite, Field(ge=0, le=1), Must("a number from 0 to 1")]
Share = Annotated[_Finite, Field(gt=0, le=1), Must("a number above 0 and at most 1")]
OneOrMore = Annotated[tuple[T, ...], Field(min_length=1), Must("one table or more")]


def given_with(*keys: str) -> BeforeValidator:
    """For a table that may be absent: where it is given, these of its keys have to be too,
    although their fields have defaults."""

    def check(value: Any) -> Any:
        missing = [key for key in keys if isinstance(value, Mapping) and key not in value]
        if missing:
            raise PydanticCustomError("missing_in_table", "{key}", {"key": missing[0]})
        return value

    return BeforeValidator(check)


def parse_record(kind: type[R], data: Any, where: str) -> R:
    """The dataclass that plain data describes.

    Args:
        kind: a ``Record``.
        data: tables as mappings by key.
        where: what messages call the source, for example ``"file 'my.toml'"``.

    Raises:
        TensorOptError: keys are missing or unknown, or values are not allowed; a line for
            each of them.
    """
    try:
        adapter: TypeAdapter[R] = _adapter(cast("Any", kind))
        return adapter.validate_python(data)
    except ValidationError as error:
        problems = _causes(error.errors(include_url=False))
        lines = [f"{where}: {_message(kind, problem)}" for problem in problems]
        raise TensorOptError("\n".join(lines)) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _causes(problems: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """Without those of tables in which something else is wrong, and is named."""
    found = list(problems)
    places = [problem["loc"] for problem in found]

    def contains_another(at: Location) -> bool:
        return any(place != at and place[: len(at)] == at for place in places)

    return [problem for problem in found if not contains_another(problem["loc"])]


def _message(kind: Any, problem: ErrorDetails) -> str:
    place, reason = problem["loc"], problem["type"]
    if reason == "missing_in_table":
        place = (*place, problem["ctx"]["key"])
    if place[-1:] == ("[key]",):
        place, reason = place[:-1], "unexpected_keyword_argument"
    name, says = _name(place), _Says.of(kind, place)
    if reason in ("missing", "missing_in_table"):
        return f"key '{name}' is missing; {says.hint or says.add(name)}"
    if reason == "unexpected_keyword_argument":
        known = sorted(_Says.of(kind, place[:-1]).keys)
        match = close_match(str(place[-1]), known)
        return f"key '{name}' is unknown; {match}allowed: {', '.join(known)}"
    if reason == "too_short" and says.keys:
        allowed = ", ".join(says.keys)
        return f"table [{name}] is empty; allowed: at least one of {allowed}{says.try_this}"
    must = says.must or (says.table(name) if says.is_table else "")
    why = f"; it must be {must}" if must else f": {problem['msg']}"
    return f"{name} = {_short(problem['input'])} is not allowed{why}{says.try_this}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _name(place: Location) -> str:
    """E.g. ``levels[0].latency_s``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")


@dataclasses.dataclass(frozen=True)
class _Says:
    """What annotations say of a place in a record; ``keys`` are those of a table."""

    kind: Any
    must: str = ""
    hint: str = ""

    @staticmethod
    def of(kind: Any, place: Location) -> _Says:
        found = _Says(kind)._resolved()
        for part in place:
            found = _Says(found._inside(part), hint=found.hint)._resolved()
        return found

    @property
    def keys(self) -> tuple[str, ...]:
        if dataclasses.is_dataclass(self.kind):
            return tuple(part.name for part in dataclasses.fields(self.kind))
        if get_origin(self.kind) is Mapping:
            return get_args(get_args(self.kind)[0])
        return ()

    @property
    def try_this(self) -> str:
        return f"; {self.hint}" if self.hint else ""

    @property
    def is_table(self) -> bool:
        return bool(self.keys) or self.are_tables

    @property
    def are_tables(self) -> bool:
        return get_origin(self.kind) is tuple and bool(_Says.of(self._inside(0), ()).keys)

    def table(self, name: str) -> str:
        """What a table of that name is called in a file; one of several has an index."""
        if self.are_tables or name.endswith("]"):
            return f"a table [[{name.rpartition('[')[0] or name}]]"
        return f"a table [{name}]"

    def add(self, name: str) -> str:
        """What to do where it is missing."""
        return f"add {self.table(name)}" if self.is_table else f"give {self.must or 'it'}"

    def _resolved(self) -> _Says:
        """With annotations read, and of an optional type the one that it is."""
        kind, must, hint = self.kind, self.must, self.hint
        for one in self._layers(kind):
            kind = one
            for note in getattr(one, "__metadata__", ()):
                must = note.be if isinstance(note, Must) else must
                hint = note.text if isinstance(note, Hint) else hint
        if get_origin(kind) is Literal:
            must = must or f"one of {', '.join(map(str, get_args(kind)))}"
        return _Says(kind, must, hint)

    @staticmethod
    def _layers(kind: Any) -> Iterator[Any]:
        while True:
            yield kind
            if get_origin(kind) is Annotated:
                kind = get_args(kind)[0]
            elif NoneType in get_args(kind):
                kind = next(one for one in get_args(kind) if one is not NoneType)
            else:
                return

    def _inside(self, part: int | str) -> Any:
        """The type of an element, of the value of a key, or of a field."""
        if dataclasses.is_dataclass(self.kind):
            return get_type_hints(self.kind, include_extras=True).get(str(part), Any)
        if get_origin(self.kind) is tuple:
            kinds = get_args(self.kind)
            return kinds[0] if kinds[1:] == (...,) else kinds[int(part)]
        return get_args(self.kind)[1] if get_origin(self.kind) is Mapping else Any
