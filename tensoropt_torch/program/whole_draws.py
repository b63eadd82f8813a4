"""Random operators that draw the numbers of one process: on every rank for the whole
tensor, of which the rank takes its part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.frontend.lowering import tensor_operands
from tensoropt_torch.program.records import Call, Operation, Record, Value
from tensoropt_torch.runtime import random
from tensoropt_torch.space.local_form import local_arguments
from tensoropt_torch.values.parts import coordinate_of, part_at

Place = tuple[tuple[int, int], ...]  # first index and length, by dim


@dataclass(frozen=True)
class WholeDraws:
    """Where the parts of one rank lie in whole tensors."""

    space: _C.SearchSpace
    numbers: Mapping[fx.Node, _C.NodeId]  # of the calls of the captured graph
    config: Sequence[int]  # of each node of the strategy space
    sizes: Sequence[int]  # of the mesh axes
    rank: int

    def layouts(self, graph_node: _C.NodeId) -> tuple[list[str], list[str]]:
        """The layouts of an operator's operands and outputs."""
        nodes = [row.graph_node for row in self.space.nodes()]
        space_node = _C.SpaceNodeId(nodes.index(graph_node))
        ports = self.space.ports(space_node)[self.config[space_node]]
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

    def call(self, record: Operation, device: torch.device) -> list[Record]:
        """The call of one process, from which this rank's part is taken."""
        node, target = record.node, record.node.target
        assert callable(target)
        graph_node = self.numbers[node]
        wholes = self._embedded(record, graph_node)
        operands = [whole.result for whole in wholes]
        args, kwargs = local_arguments(node, {}, operands, device)
        drawn = Call(Value(), target, args, kwargs)
        part = Call(record.result, random.take_part, (drawn.result, self._places(node, graph_node)))
        return [*wholes, drawn, part]

    def _embedded(self, record: Operation, graph_node: _C.NodeId) -> list[Call]:
        """The operands as whole tensors, with the strides that they have in one process; with
        the values of all ranks where they say how much the operator draws."""
        layouts, _ = self.layouts(graph_node)
        units = self.space.units_of_node(graph_node).operands
        wholes, by_value = tensor_operands(record.node), str(record.node.target)
        results = []
        for part, whole, layout, of_dims in zip(
            record.operands, wholes, layouts, units, strict=True
        ):
            value: torch.Tensor = whole.meta["val"]
            # Of expanded tensors: those that numbers drawn like it have.
            strides = tuple(torch.empty_like(value).stride())
            shape = tuple(value.shape)
            arguments = (part, shape, strides, self.place(shape, layout, of_dims))
            if by_value in random.DRAW_BY_VALUE and "S" in layout:
                gathered = (*arguments, self.owns(layout))
                results.append(Call(Value(), random.gather_part, gathered))
            else:
                results.append(Call(Value(), random.embed_part, arguments))
        return results

    def _places(self, node: fx.Node, graph_node: _C.NodeId) -> tuple[Place, ...]:
        """The rank's parts of what the call gives."""
        _, layouts = self.layouts(graph_node)
        units = self.space.units_of_node(graph_node).outputs
        whole = node.meta["val"]
        values = whole if isinstance(whole, (tuple, list)) else [whole]
        return tuple(
            self.place(value.shape, layout, of_dims)
            for value, layout, of_dims in zip(values, layouts, units, strict=True)
        )
