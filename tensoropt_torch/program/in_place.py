"""Calls that the model makes in place, and a rank may make in place as well: activations then
need no second tensor, whose memory would be new in every step.

What the model's own calls give may be overwritten as in the model. What others give, such as
reshards, may not: their autograd may have saved it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from tensoropt_torch.frontend.in_place_calls import in_place_call
from tensoropt_torch.program.records import Call, Record, Value


def in_place(records: Sequence[Record]) -> list[Record]:
    """The records with such calls in place."""
    made: dict[Value, fx.Node] = {}
    found: list[Record] = []
    for record in records:
        if isinstance(record, Call) and record.node is not None and not record.runs_again:
            record = _overwriting(record, record.node, made)
            if record.is_own:
                assert record.node is not None
                made[record.result] = record.node
        found.append(record)
    return found


def _overwriting(record: Call, node: fx.Node, made: dict[Value, fx.Node]) -> Call:
    if record.function is not node.target or not record.operands:
        return record
    if made.get(record.operands[0]) is not node.args[0]:
        return record
    target = in_place_call(node)
    return record if target is None else replace(record, function=target)
