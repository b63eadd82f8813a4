"""Buffers that a forward writes and whose old contents backward needs.

Their memory is written where forward ends, while autograd, or what runs again in backward, goes
on looking at it. So those who read them get a copy that is made where forward begins.
"""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.frontend.passes import (
    BUFFER,
    changes_memory,
    running_statistics,
    trained_nodes,
)


class KeptBuffers:
    """Of a captured graph, for the graph of one rank."""

    def __init__(self, captured: fx.Graph) -> None:
        self._kept = kept_buffers(captured)
        self._written: dict[fx.Node, fx.Node] = {}

    def begin(self, placeholders: dict[fx.Node, fx.Node], graph: fx.Graph) -> None:
        """Puts copies in the place of ``placeholders`` of the rank's graph, by those of the
        captured one; at its start."""
        for old in self._kept:
            self._written[old] = placeholders[old]
            copy = torch.ops.aten.clone.default
            placeholders[old] = graph.call_function(copy, (placeholders[old],))

    def target(self, node: fx.Node, operands: list[fx.Node]) -> list[fx.Node]:
        """The operands of a call: what is written is the buffer itself."""
        buffer = node.args[0] if node.args and changes_memory(node) else None
        if not isinstance(buffer, fx.Node) or buffer not in self._written:
            return operands
        return [self._written[buffer], *operands[1:]]


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
