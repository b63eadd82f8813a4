"""Buffers that a forward writes and whose old contents backward needs.

Their memory is written where forward ends, while autograd, or what runs again in backward, goes
on looking at it. So those who read them get a copy that is made where forward begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import fx

from tensoropt_torch.frontend.passes import (
    BUFFER,
    changes_memory,
    running_statistics,
    trained_nodes,
)
from tensoropt_torch.program.places import after_inputs
from tensoropt_torch.program.records import Copy, Operation, Record, Value, taking


def with_copies(
    records: Sequence[Record], captured: fx.Graph, inputs: Mapping[fx.Node, Value]
) -> list[Record]:
    """The records, in which all but those that write such buffers take copies. ``inputs`` are
    those of the rank by the placeholders of the captured graph."""
    copies = {inputs[old]: Value() for old in kept_buffers(captured)}
    if not copies:
        return list(records)
    found: list[Record] = []
    for record in records:
        other = taking(record, copies)
        if isinstance(other, Operation):
            other = _writing(other, inputs, copies)
        found.append(other)
    return after_inputs(found, [Copy(copy, buffer) for buffer, copy in copies.items()])


def _writing(
    record: Operation, inputs: Mapping[fx.Node, Value], copies: Mapping[Value, Value]
) -> Operation:
    """What is written is the buffer itself."""
    node = record.node
    buffer = node.args[0] if node.args and changes_memory(node) else None
    written = inputs.get(buffer) if isinstance(buffer, fx.Node) else None
    if written not in copies:
        return record
    assert written is not None
    return replace(record, operands=(written, *record.operands[1:]))


def kept_buffers(graph: fx.Graph) -> list[fx.Node]:
    """The buffers that a graph writes where it ends, and that something with a gradient
    follows from. Running statistics are written where they are used, and are not read."""
    written = {node.args[0] for node in graph.nodes if changes_memory(node)}
    statistics = {buffer for node in graph.nodes for buffer in running_statistics(node)}
    trained = trained_nodes(graph)
    return [
        node
        for node in graph.find_nodes(op="placeholder")
        if node.meta.get(BUFFER, False)
        and node in written
        and node not in statistics
        and _leads_to(node, trained)
    ]


def _leads_to(buffer: fx.Node, trained: set[fx.Node]) -> bool:
    seen: set[fx.Node] = set()
    left = [user for user in buffer.users if not changes_memory(user)]
    while left:
        node = left.pop()
        if node in trained:
            return True
        if node not in seen:
            seen.add(node)
            left += [user for user in node.users if not changes_memory(user)]
    return False
