"""Constants that a forward pass makes and returns, such as ``torch.tensor(0.0)``: they are in the
graph, and every call returns a new one, to which the program may write."""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import FOLDED, computed, gives_views

LIFTED = "lifted_tensor_"  # as torch.export calls what is made of numbers
_COPY = torch.ops.aten.clone.default


def copy_returned_constants(graph: fx.Graph) -> None:
    """Copies them before they are returned."""
    output = graph.output_node()
    for node in output.all_input_nodes:
        if _is_made(_memory_of(node)):
            with graph.inserting_before(output):
                copy = graph.call_function(_COPY, (node,))
            copy.meta["val"] = computed(_COPY, (node,))
            output.replace_input_with(node, copy)


def _is_made(node: fx.Node) -> bool:
    return node.op == "placeholder" and (FOLDED in node.meta or LIFTED in str(node.target))


def _memory_of(node: fx.Node) -> fx.Node:
    while node.op == "call_function" and gives_views(node.target) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node
