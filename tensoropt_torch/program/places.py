"""Where passes put records."""

from __future__ import annotations

from collections.abc import Sequence

from tensoropt_torch.program.records import CountOutOfRange, Input, Output, Record, Reduce


def after_inputs(records: Sequence[Record], added: Sequence[Record]) -> list[Record]:
    """The records with some more, before all that are computed."""
    place = next(i for i, record in enumerate(records) if not isinstance(record, Input))
    return [*records[:place], *added, *records[place:]]


def before_sums(records: Sequence[Record], added: Sequence[Record]) -> list[Record]:
    """The records with some more, where forward ends: before what is counted and
    summed there."""
    ends = (i for i, record in enumerate(records) if _ends(record))
    place = next(ends, len(records))
    return [*records[:place], *added, *records[place:]]


def _ends(record: Record) -> bool:
    return isinstance(record, Output | CountOutOfRange) or (
        isinstance(record, Reduce) and record.at_end
    )
