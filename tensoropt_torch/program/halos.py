"""What an operator borrows from the neighbours of a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tensoropt_torch.program.records import ExchangeHalo, Operation, Record, Value


def with_halos(records: Sequence[Record], group_name: Callable[[int], str]) -> list[Record]:
    """Operations take what they borrow with what the rank has."""
    found: list[Record] = []
    for record in records:
        if isinstance(record, Operation):
            for halo in record.form.halos:
                source, *others = record.operands
                borders = (halo.dim, halo.low, halo.high, halo.fill)
                group, again = group_name(halo.axes), record.form.runs_again
                exchange = ExchangeHalo(Value(), source, borders, group, again)
                found.append(exchange)
                record = replace(record, operands=(exchange.result, *others))
        found.append(record)
    return found
