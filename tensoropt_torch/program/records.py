"""What one rank does in a step, as a list of records.

::

    Input(x, "x"), Reshard(y, x, programs), Call(z, torch.ops.aten.relu.default, (y,)), Output(z)

A record gives values and takes those that records before it give. Which values these are is all
that a record says of the list around it. So passes (``passes.py``) put records in between, take
some out, or others in their place. What records become, such as nodes of an ``fx.Graph``, is the
matter of who writes them (``emit/eager_writer.py``).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.program.edges import GradientEdge
from tensoropt_torch.space.local_form import LocalForm


@dataclass(frozen=True, eq=False)
class Value:
    """What a record gives. Each is another one."""


@dataclass(frozen=True)
class Input:
    """What the rank is given."""

    result: Value
    name: str


@dataclass(frozen=True)
class Item:
    """One of several values."""

    result: Value
    source: Value
    index: Any
    function: Callable[..., Any] = operator.getitem


@dataclass(frozen=True)
class Copy:
    """A copy of a value: the same numbers in other memory."""

    result: Value
    source: Value


@dataclass(frozen=True)
class Operation:
    """A call of the captured graph, with the rank's operands, whose arguments are not written."""

    result: Value
    node: fx.Node
    form: LocalForm
    operands: tuple[Value, ...]


@dataclass(frozen=True)
class Call:
    """The call of a function.

    Attributes:
        groups: names of process groups among the arguments.
        runs_again: in backward, instead of keeping what it makes, with the operands that are
            ``moved`` since as they were.
        node: the call of the captured graph that this is, if it is one.
        operands: the values of that, in its order.
        is_own: it is that call itself, on what the rank has, and nothing besides.
    """

    result: Value
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    runs_again: bool = False
    moved: tuple[Value, ...] = ()
    node: fx.Node | None = None
    operands: tuple[Value, ...] = ()
    is_own: bool = False


@dataclass(frozen=True)
class Scale:
    """A value times a number."""

    result: Value
    source: Value
    factor: float
    runs_again: bool = False


@dataclass(frozen=True)
class Reshard:
    """A value in another layout, and its gradient in that which it comes from.

    Attributes:
        edge: of the strategy space.
        consumer: the node of the captured graph that takes it; None: several do.
        gradient: where it is that of a parameter.
    """

    result: Value
    source: Value
    programs: _C.EmittedReshard
    edge: Any
    consumer: fx.Node | None = None
    gradient: GradientEdge | None = None


@dataclass(frozen=True)
class TakeParameters:
    """Parameters whose reshards share a queue, of sums of ``bucket_bytes`` and ``shard_bytes``.
    Their gradients are awaited here."""

    results: tuple[Value, ...]
    sources: tuple[Value, ...]
    bucket_bytes: int
    shard_bytes: int


@dataclass(frozen=True)
class ReshardGradients:
    """Parameters that are used as they are, and whose gradients have the same program.

    Attributes:
        slots: of the queue.
        programs, gradients: of each.
    """

    results: tuple[Value, ...]
    sources: tuple[Value, ...]
    slots: tuple[int, ...]
    programs: tuple[_C.EmittedReshard, ...]
    gradients: tuple[GradientEdge | None, ...]


@dataclass(frozen=True)
class ReshardParameter:
    """The reshard of a parameter of the queue, in its slot."""

    result: Value
    source: Value
    slot: int
    programs: _C.EmittedReshard
    gradient: GradientEdge | None = None


@dataclass(frozen=True)
class BeginValues:
    """The programs of values begin that reshards of parameters of the queue give later: of one of
    them, or of several that are gathered together."""

    sources: tuple[Value, ...]
    slots: tuple[int, ...]
    programs: tuple[_C.EmittedReshard, ...]


@dataclass(frozen=True)
class Keep:
    """What backward needs of ``value`` is made again from ``source``, from which a reshard made
    it; ``bucket``: with those of the same number."""

    value: Value
    source: Value
    programs: _C.EmittedReshard
    bucket: int | None = None


@dataclass(frozen=True)
class ExchangeHalo:
    """A value with what the rank borrows from its neighbours along a dim."""

    result: Value
    source: Value
    borders: tuple[Any, ...]  # the dim, how much at both ends, and what fills the ends of all
    group: str
    runs_again: bool = False


Bounds = tuple[int, int, int | None]  # the lowest and the end of positions, and one that is ignored


@dataclass(frozen=True)
class CheckLookup:
    """Positions have to be in range, as every rank sees by itself; ``what`` they are, in words."""

    source: Value
    bounds: Bounds
    what: str


@dataclass(frozen=True)
class BoundLookup:
    """Positions as they can be looked up, and the range that the rank's have."""

    result: Value
    ranges: Value
    source: Value
    bounds: Bounds


@dataclass(frozen=True)
class Ranges:
    """Of positions of which ranks have parts: what was found, and what is allowed."""

    found: tuple[Value, ...]
    lows: tuple[int, ...]
    highs: tuple[int, ...]


@dataclass(frozen=True)
class CountOutOfRange:
    """How many positions of the rank are out of range."""

    result: Value
    ranges: Ranges


@dataclass(frozen=True)
class CheckCounts:
    """None of any rank may be; ``whats`` they are, in words."""

    count: Value
    ranges: Ranges
    whats: tuple[str, ...]
    group: str


@dataclass(frozen=True)
class Buffers:
    """Buffers that ranks have changed by themselves, and what
    ``csrc/runtime/forward_sums_op.cc`` takes of each."""

    values: tuple[Value, ...] = ()
    begins: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reduce:
    """The sums over a group of what its ranks have, without gradients; buffers become means.
    ``at_end``: together with others where forward ends."""

    results: tuple[Value, ...]
    shares: tuple[Value, ...]
    buffers: Buffers
    group: str
    at_end: bool = False


@dataclass(frozen=True)
class SumOf:
    """A sum that is known, as one of the rank's share, which has the gradient."""

    result: Value
    sum: Value
    share: Value
    group: str


@dataclass(frozen=True)
class AgreeOnDraws:
    """The random states of all ranks become that of the first."""

    device: torch.device


@dataclass(frozen=True)
class Confirm:
    """Here the ranks must have agreed on the call."""


@dataclass(frozen=True)
class Output:
    """What the rank gives, in the containers of the captured graph's ``node``."""

    values: Any
    node: fx.Node


Record = (
    Input
    | Item
    | Copy
    | Operation
    | Call
    | Scale
    | Reshard
    | TakeParameters
    | ReshardGradients
    | ReshardParameter
    | BeginValues
    | Keep
    | ExchangeHalo
    | CheckLookup
    | BoundLookup
    | CountOutOfRange
    | CheckCounts
    | Reduce
    | SumOf
    | AgreeOnDraws
    | Confirm
    | Output
)

_NESTED = (Ranges, Buffers)
# Where a record may have values that it takes.
_TAKEN = (
    *("source", "sources", "operands", "moved", "args", "kwargs", "value", "ranges", "count"),
    *("shares", "buffers", "sum", "share", "values"),
)


def _names(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of fields with values that are given, and of those with values that are taken."""
    names = [part.name for part in dataclasses.fields(kind)]
    given_ones = {"result", "results"} | ({"ranges"} if kind is BoundLookup else set())
    return (
        tuple(name for name in names if name in given_ones),
        tuple(name for name in names if name in _TAKEN and name not in given_ones),
    )


_NAMES: Mapping[type[Any], tuple[tuple[str, ...], tuple[str, ...]]] = {
    kind: _names(kind) for kind in get_args(Record)
}


def given(record: Record) -> Iterator[Value]:
    """The values that a record gives."""
    for name in _NAMES[type(record)][0]:
        yield from values_in(getattr(record, name))


def taken(record: Record) -> Iterator[Value]:
    """The values that a record takes, more than once if it does."""
    for name in _NAMES[type(record)][1]:
        tree = getattr(record, name)
        if isinstance(tree, Value):
            yield tree
        elif tree:
            yield from values_in(tree)


def values_in(tree: Any) -> Iterator[Value]:
    """The values in containers, in their order."""
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from values_in(item)
    elif isinstance(tree, Mapping):
        yield from values_in(tuple(tree.values()))
    elif isinstance(tree, _NESTED):
        for part in dataclasses.fields(tree):
            yield from values_in(getattr(tree, part.name))


def taking(record: Record, others: Mapping[Value, Value]) -> Record:
    """The record with other values in the place of some that it takes."""
    if not any(value in others for value in taken(record)):
        return record
    names = _NAMES[type(record)][1]
    changed: dict[str, Any] = {name: _mapped(getattr(record, name), others) for name in names}
    return dataclasses.replace(record, **changed)


def _mapped(tree: Any, others: Mapping[Value, Value]) -> Any:
    if isinstance(tree, Value):
        return others.get(tree, tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([_mapped(item, others) for item in tree])
    if isinstance(tree, Mapping):
        return {name: _mapped(item, others) for name, item in tree.items()}
    if isinstance(tree, _NESTED):
        parts = dataclasses.fields(tree)
        return dataclasses.replace(
            tree, **{part.name: _mapped(getattr(tree, part.name), others) for part in parts}
        )
    return tree


def check(records: Sequence[Record]) -> None:
    """Raises AssertionError unless every value is given once, before it is taken, and the last
    record is the only output."""
    known: set[Value] = set()
    for record in records:
        for value in taken(record):
            assert value in known, f"{type(record).__name__} takes what no record before it gives"
        for value in given(record):
            assert value not in known, f"{type(record).__name__} gives what another record gives"
            known.add(value)
    outputs = [index for index, record in enumerate(records) if isinstance(record, Output)]
    assert outputs == [len(records) - 1], f"{len(outputs)} outputs"
