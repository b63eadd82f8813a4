"""Edges of the strategy space, as the graph of a rank looks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.frontend import Blocks, CapturedModel, is_cast


@dataclass(frozen=True)
class EdgeIndex:
    """Where in the strategy space the reshards of a graph are found."""

    relay: dict[_C.ValueId, _C.SpaceEdgeId]  # edge into the relay of a value
    operand: dict[tuple[_C.NodeId, int], _C.SpaceEdgeId]  # by graph node and operand
    first: dict[_C.ValueId, _C.SpaceEdgeId]  # edge from the producer of a value, one of them

    @staticmethod
    def of(space: _C.SearchSpace) -> EdgeIndex:
        relay: dict[_C.ValueId, _C.SpaceEdgeId] = {}
        operand: dict[tuple[_C.NodeId, int], _C.SpaceEdgeId] = {}
        first: dict[_C.ValueId, _C.SpaceEdgeId] = {}
        for number, end in enumerate(space.edges()):
            edge = _C.SpaceEdgeId(number)
            first.setdefault(end.value, edge)
            if end.graph_node < 0:
                relay[end.value] = edge
            else:
                operand[end.graph_node, end.operand] = edge
        return EdgeIndex(relay, operand, first)


@dataclass(frozen=True)
class GradientEdge:
    """Where the gradient of a parameter is sent: the name of the parameter, the tensor layout in
    which the gradient comes there, and how the graph sees both. ``summed``: the gradients of the
    micro-batches of a step are added up there."""

    parameter: str
    layout: str
    blocks: Blocks | None
    summed: bool = False


def gradient_edges(
    captured: CapturedModel, edges: EdgeIndex, program: _C.RankProgram
) -> dict[_C.SpaceEdgeId, GradientEdge]:
    """At most one of each parameter, by whose program alone its gradient gets there; if the
    parameter is used through a cast, preferably the edge before the gradient is cast."""
    found = {}
    for source in captured.parameters:
        own = edges.first.get(captured.lowering.values[source.placeholder][0])
        for node in _ways(source.placeholder, own is not None and _sends(program, own)):
            edge = edges.first.get(captured.lowering.values[node][0])
            if edge is None:
                continue
            reshard = program.reshard(edge)
            if reshard.backward.groups or reshard.summed:
                layout = program.gradient_layout(edge)
                found[edge] = GradientEdge(source.names[0], layout, source.blocks, reshard.summed)
                break
    return found


def _sends(program: _C.RankProgram, edge: _C.SpaceEdgeId) -> bool:
    return bool(program.reshard(edge).backward.steps)


def _ways(parameter: fx.Node, sends_on: bool) -> Iterator[fx.Node]:
    """``sends_on``: the edge of the parameter itself sends its gradient somewhere."""
    users = list(parameter.users)
    if len(users) == 1 and is_cast(users[0]) and not sends_on:
        yield users[0]
    yield parameter
