"""Copies of graphs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx
from torch.utils import _pytree as pytree


@dataclass
class GraphCopy:
    """A graph that is being copied, node by node.

    Attributes:
        nodes: what stands for the nodes of the old graph.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def add(self, node: fx.Node) -> fx.Node:
        """The copy of a node, with its ``meta``."""
        self.nodes[node] = new = self.graph.node_copy(node, self.nodes.__getitem__)
        return new


def made_on(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """A copy whose calls make their tensors there, wherever the graph was captured."""
    copy = GraphCopy()
    for node in module.graph.nodes:
        new = copy.add(node)
        new.args, new.kwargs = pytree.tree_map_only(
            torch.device, lambda _: device, (new.args, new.kwargs)
        )
    return fx.GraphModule(module, copy.graph, "Totals")
