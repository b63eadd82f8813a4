"""Checks that positions which are looked up, such as token ids, are in range.

Where all ranks have the same numbers each throws by itself. Where they have parts, they add
up where forward ends how many are out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tensoropt_torch.program.places import before_sums
from tensoropt_torch.program.records import (
    BoundLookup,
    Buffers,
    CheckCounts,
    CheckLookup,
    CountOutOfRange,
    Operation,
    Ranges,
    Record,
    Reduce,
    Value,
)


def with_checks(
    records: Sequence[Record], group_name: Callable[[int], str], counts: bool
) -> list[Record]:
    """Operations take positions that are checked; ``counts``: those of which ranks have parts are
    counted, too, where forward ends."""
    checks = _Checks()
    for record in records:
        if isinstance(record, Operation) and record.form.lookups:
            record = checks.checked(record)
        checks.records.append(record)
    if not (counts and checks.found):
        return checks.records
    return before_sums(checks.records, checks.count(group_name(checks.axes)))


@dataclass
class _Checks:
    records: list[Record] = field(default_factory=list)
    axes: int = 0
    found: list[tuple[Value, int, int, str]] = field(default_factory=list)

    def checked(self, record: Operation) -> Operation:
        operands = list(record.operands)
        for lookup in record.form.lookups:
            what = f"op '{record.node.name}' ({record.node.target})"
            source, bounds = operands[lookup.operand], (lookup.low, lookup.high, lookup.ignored)
            if not lookup.axes:
                self.records.append(CheckLookup(source, bounds, what))
                continue
            bounded = BoundLookup(Value(), Value(), source, bounds)
            self.records.append(bounded)
            self.axes |= lookup.axes
            self.found.append((bounded.ranges, lookup.low, lookup.high, what))
            operands[lookup.operand] = bounded.result
        return replace(record, operands=tuple(operands))

    def count(self, group: str) -> list[Record]:
        """What is out of range, of all ranks."""
        found, lows, highs, whats = zip(*self.found, strict=True)
        ranges = Ranges(found, lows, highs)
        count, whole = CountOutOfRange(Value(), ranges), Value()
        return [
            count,
            Reduce((whole,), (count.result,), Buffers(), group, at_end=True),
            CheckCounts(whole, ranges, whats, group),
        ]
