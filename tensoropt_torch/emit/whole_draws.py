"""Random operators that draw the numbers of one process: on every rank for the whole
tensor, of which the rank takes its part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.runtime import random
from tensoropt_torch.values.parts import coordinate_of, part_at

Place = tuple[tuple[int, int], ...]  # first index and length, by dim


@dataclass(frozen=True)
class WholeDraws:
    """Where the parts of one rank lie in whole tensors."""

    planner: _C.Planner
    config: Sequence[int]  # of each node of the strategy space
    sizes: Sequence[int]  # of the mesh axes
    rank: int

    def layouts(self, graph_node: _C.NodeId) -> tuple[list[str], list[str]]:
        """The layouts of an operator's operands and outputs."""
        nodes = [row.graph_node for row in self.planner.nodes()]
        space_node = _C.SpaceNodeId(nodes.index(graph_node))
        ports = self.planner.ports(space_node)[self.config[space_node]]
        return [port.value for port in ports.inputs], [port.value for port in ports.outputs]

    def place(self, shape: Sequence[int], layout: str, units: Sequence[int]) -> Place:
        """The rank's part of a tensor with ``units``."""
        placements = layout.split(",") if layout else []
        dims = [int(p[1:]) if p[0] == "S" else None for p in placements]
        coordinate = coordinate_of(self.rank, self.sizes)
        part = part_at(shape, dims, self.sizes, coordinate, units)
        return tuple((cut.start, cut.stop - cut.start) for cut in part)

    def owns(self, layout: str) -> bool:
        """Whether the rank is the first of those that have the same part."""
        coordinate = coordinate_of(self.rank, self.sizes)
        placements = layout.split(",") if layout else []
        return not any(c for c, p in zip(coordinate, placements, strict=True) if p[0] != "S")

    def embed(
        self,
        graph: fx.Graph,
        parts: Sequence[fx.Node],
        wholes: Sequence[fx.Node],
        node: _C.NodeId,
        target: Any,
    ) -> list[fx.Node]:
        """The operands as whole tensors, with the strides that they have in one process; with
        the values of all ranks where they say how much ``target`` draws."""
        layouts, _ = self.layouts(node)
        units = self.planner.units_of_node(node).operands
        results = []
        for part, whole, layout, of_dims in zip(parts, wholes, layouts, units, strict=True):
            value: torch.Tensor = whole.meta["val"]
            # Of expanded tensors: those that numbers drawn like it have.
            strides = tuple(torch.empty_like(value).stride())
            shape = tuple(value.shape)
            arguments = (part, shape, strides, self.place(shape, layout, of_dims))
            if str(target) in random.DRAW_BY_VALUE and "S" in layout:
                gathered = (*arguments, self.owns(layout))
                results.append(graph.call_function(random.gather_part, gathered))
            else:
                results.append(graph.call_function(random.embed_part, arguments))
        return results

    def take(self, graph: fx.Graph, call: fx.Node, whole: Any, node: _C.NodeId) -> fx.Node:
        """The rank's part of what ``call`` gives; ``whole`` is what one process gets."""
        _, layouts = self.layouts(node)
        units = self.planner.units_of_node(node).outputs
        values = whole if isinstance(whole, (tuple, list)) else [whole]
        places = tuple(
            self.place(value.shape, layout, of_dims)
            for value, layout, of_dims in zip(values, layouts, units, strict=True)
        )
        return graph.call_function(random.take_part, (call, places))
