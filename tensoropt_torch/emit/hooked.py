"""A rank's graph for steps that do more than run it once.

Gradients of parameters pass a **sink** where the programs begin that send them to their
parameters: it takes what is added up first, or kept, and gives what was. And values of
parameters that are **held** are resharded by a graph of their own, and are given to the others.

::

    hooked = HookedGraph.of(rank_graph)
    values = () if hooked.head is None else hooked.head.forward(*inputs)
    outputs = hooked.body.forward(*inputs, *values, sink)

Neither the graph of a rank nor its operators know of this: steps that need neither run the graph
as it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from tensoropt_torch.emit.copies import GraphCopy
from tensoropt_torch.emit.quick_calls import quicken
from tensoropt_torch.emit.reshard_calls import HELD, slot_of, slots_begun
from tensoropt_torch.operators import OPS
from tensoropt_torch.program.edges import GradientEdge
from tensoropt_torch.program.reshards import Program

# In the meta of nodes of a rank's graph, and there the encoded program of the gradient with its
# groups.
GRADIENT_EDGE = "gradient_edge"
GRADIENT_PROGRAM = "gradient_program"


class Sink(Protocol):
    """What gradients pass."""

    def watch(self, parameter: str, node: Any) -> None:
        """A reshard of the parameter has this node of autograd, whose prehooks get the gradient
        as the consumer of the parameter makes it, and whose program sends it to it."""


@dataclass(frozen=True)
class HookedGraph:
    """The copy of a graph.

    Attributes:
        body: takes, after all inputs, the held values and the sink.
        head: gives the held values; None: there are none.
        borders: where each parameter's gradient passes the sink, by its name, and the program
            that begins there.
    """

    body: fx.GraphModule
    head: fx.GraphModule | None
    borders: Mapping[str, tuple[GradientEdge, Program]]

    @staticmethod
    def of(rank_graph: fx.GraphModule) -> HookedGraph:
        """The copy of the graph of a rank, which may be compiled."""
        nodes = rank_graph.graph.nodes
        held = _held(rank_graph)
        borders = {
            node.meta[GRADIENT_EDGE].parameter: (
                node.meta[GRADIENT_EDGE],
                node.meta[GRADIENT_PROGRAM],
            )
            for node in nodes
            if GRADIENT_EDGE in node.meta
        }
        head = _head(rank_graph, held) if held else None
        return HookedGraph(_body(rank_graph, held, True), head, borders)

    @staticmethod
    def to_record(rank_graph: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
        """The body, for a tape, and the numbers of its inputs that are held values."""
        held = _held(rank_graph)
        first = len(rank_graph.graph.find_nodes(op="placeholder"))
        return _body(rank_graph, held, False), [*range(first, first + len(held))]


def _held(rank_graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in rank_graph.graph.nodes if node.meta.get(HELD)]


def _head(rank_graph: fx.GraphModule, held: Sequence[fx.Node]) -> fx.GraphModule:
    copy = GraphCopy()
    slots = {slot_of(node) for node in held}
    for node in rank_graph.graph.nodes:
        if node.target is OPS.await_gradients.default:  # none comes
            copy.nodes |= {user: copy.nodes[node.args[0][user.args[1]]] for user in node.users}
            continue
        begins = node in held or _is_queue(node, held) or slots_begun(node) & slots
        if node.op == "placeholder" or begins:
            copy.add(node)
    copy.graph.output(tuple(copy.nodes[node] for node in held))
    copy.graph.lint()
    return fx.GraphModule(rank_graph, copy.graph, "HeldValues")


def _body(rank_graph: fx.GraphModule, held: Sequence[fx.Node], quickly: bool) -> fx.GraphModule:
    copy = GraphCopy()
    slots = {slot_of(node) for node in held}
    values: dict[fx.Node, fx.Node] = {}
    sink: fx.Node | None = None
    for node in rank_graph.graph.nodes:
        if node.op != "placeholder" and sink is None:
            values = {n: copy.graph.placeholder(f"held_{n.name}") for n in held}
            sink = copy.graph.placeholder("sink")
        if slots_begun(node) & slots:
            continue
        if node in values:
            queue, slot = node.args[-2:]
            assert isinstance(queue, fx.Node)
            put = OPS.put_value.default
            copy.graph.call_function(put, (values[node], copy.nodes[queue], slot))
        new = copy.add(node)
        if quickly:
            quicken(new)
        if GRADIENT_EDGE in node.meta:
            parameter = node.meta[GRADIENT_EDGE].parameter
            copy.graph.call_function(pass_sink, (new, parameter, sink))
    copy.graph.lint()
    return fx.GraphModule(rank_graph, copy.graph, "HookedGraph")


def _is_queue(node: fx.Node, held: Sequence[fx.Node]) -> bool:
    return any(node is reshard.args[-2] for reshard in held)


def pass_sink(value: torch.Tensor, parameter: str, sink: Sink) -> None:
    """The gradient of what a reshard made of a parameter passes the sink."""
    if value.grad_fn is not None:
        sink.watch(parameter, value.grad_fn)
