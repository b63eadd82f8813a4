"""Where the ranks must have agreed on the call."""

from __future__ import annotations

from collections.abc import Sequence

from torch._ops import OpOverload

from tensoropt_torch.program.records import (
    AgreeOnDraws,
    BeginValues,
    Call,
    CheckCounts,
    Confirm,
    ExchangeHalo,
    Output,
    Record,
    Reduce,
    Reshard,
    ReshardParameter,
)
from tensoropt_torch.program.reshards import runs_again


def confirmed(records: Sequence[Record]) -> list[Record]:
    """The records with a ``Confirm`` before the first one that is seen outside of the rank, or, if
    there is none, where they end."""
    place = next(i for i, record in enumerate(records) if _is_seen_outside(record))
    return [*records[:place], Confirm(), *records[place:]]


def _is_seen_outside(record: Record) -> bool:
    match record:
        case Output() | AgreeOnDraws() | Reduce() | CheckCounts():
            return True
        case Reshard(programs=programs) if runs_again(programs):
            return bool(programs.forward.groups or programs.backward.groups)
        case Reshard(programs=programs) | ReshardParameter(programs=programs):
            return bool(programs.forward.groups)
        case BeginValues(programs=(programs, *_)):
            return bool(programs.forward.groups)
        case ExchangeHalo(group=group):
            return bool(group)
        case Call():
            return bool(record.groups) or _changes_something(record)
    return False


def _changes_something(call: Call) -> bool:
    """Whether it writes to what it is given. ATen's batch normalisation does, though its
    schema does not say so."""
    if call.runs_again or not isinstance(call.function, OpOverload):
        return False
    schema = call.function._schema
    return schema.is_mutable or any(
        argument.name == "running_mean" for argument in schema.arguments
    )
