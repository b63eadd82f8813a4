"""The records of a captured graph on one rank: its inputs, its calls with what reshards their
operands, and its output. What else a rank does is put between them (``passes.py``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.lowering import tensor_operands
from tensoropt_torch.program.edges import EdgeIndex, gradient_edges
from tensoropt_torch.program.records import (
    Call,
    Input,
    Item,
    Operation,
    Output,
    Record,
    Reshard,
    Value,
)
from tensoropt_torch.program.reshards import is_reshard, value_dtype
from tensoropt_torch.space.local_form import LocalForm

STEP_SEED = "step_seed"


class Walk:
    """Goes through the captured graph in its order.

    Attributes:
        records: what it has found.
        inputs: the values of sources, by their placeholders.
        step_seed: what gives the seed of the step.
    """

    def __init__(
        self,
        captured: CapturedModel,
        space: _C.SearchSpace,
        program: _C.RankProgram,
    ) -> None:
        self.records: list[Record] = []
        self.step_seed = Value()
        self._captured = captured
        self._program = program
        self._edges = EdgeIndex.of(space)
        self._gradients = gradient_edges(captured, self._edges, program)
        self._copies = frozenset(space.parameter_copies())
        self._values: dict[_C.ValueId, Value] = {}
        self._several: dict[fx.Node, Value] = {}  # what calls give that give several
        self.inputs = {source.placeholder: Value() for source in captured.sources}
        self._go()

    def _go(self) -> None:
        self.records += [Input(value, old.name) for old, value in self.inputs.items()]
        self.records.append(Input(self.step_seed, STEP_SEED))
        for source in self._captured.sources:
            if source.kind != "literal":
                self._define(source.placeholder, self.inputs[source.placeholder])
        for node in self._captured.graph_module.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)

    def _define(self, old: fx.Node, new: Value) -> None:
        """Record a value, in the layout in which its consumers look for it."""
        value = self._captured.lowering.values[old][0]
        edge = self._edges.relay.get(value)
        self._values[value] = new if edge is None else self._resharded(new, edge, None)

    def _call(self, node: fx.Node) -> None:
        if isinstance(node.target, OpOverload):
            new = self._operation(node)
        else:
            source, index = node.args
            assert isinstance(source, fx.Node) and callable(node.target)
            new = Value()
            self.records.append(Item(new, self._several[source], index, node.target))
        if isinstance(node.meta["val"], (tuple, list)):
            self._several[node] = new
        else:
            self._define(node, new)

    def _operation(self, node: fx.Node) -> Value:
        graph_node = self._captured.lowering.nodes[node]
        operands = tuple(
            self._operand(operand, graph_node, port, node)
            for port, operand in enumerate(tensor_operands(node))
        )
        if graph_node in self._copies:
            return operands[0]  # the cast is part of the reshard that follows
        new = Value()
        form = LocalForm.of(self._program.call(graph_node))
        self.records.append(Operation(new, node, form, operands))
        return new

    def _operand(self, old: fx.Node, consumer: _C.NodeId, port: int, node: fx.Node) -> Value:
        value = self._captured.lowering.values[old][0]
        return self._resharded(self._values[value], self._edges.operand[consumer, port], node)

    def _output(self, node: fx.Node) -> None:
        graph_node = self._captured.lowering.nodes[node]
        given = {
            old: self._operand(old, graph_node, port, node)
            for port, old in enumerate(node.all_input_nodes)
        }
        instead: Any = given.__getitem__
        self.records.append(Output(fx.map_arg(node.args[0], instead), node))

    def _resharded(self, source: Value, edge: _C.SpaceEdgeId, consumer: fx.Node | None) -> Value:
        programs = self._program.reshard(edge)
        if not is_reshard(programs) and not programs.casts:
            return source
        new = Value()
        if is_reshard(programs):
            gradient = self._gradients.get(edge)
            found: Record = Reshard(new, source, programs, edge, consumer, gradient)
        else:
            kwargs: dict[str, Any] = {"dtype": value_dtype(programs)}
            found = Call(new, torch.ops.aten._to_copy.default, (source,), kwargs)
        self.records.append(found)
        return new

    def first_edges(self) -> dict[_C.SpaceEdgeId, Value]:
        """By which parameters are first resharded, of those that are: that of a parameter, or of
        the copy that it is cast to if it has no other use."""
        found: dict[_C.SpaceEdgeId, Value] = {}
        for source in self._captured.parameters:
            for node in self._ways(source.placeholder):
                edge = self._edges.first.get(self._captured.lowering.values[node][0])
                if edge is not None and is_reshard(self._program.reshard(edge)):
                    found[edge] = self.inputs[source.placeholder]
                    break
        return found

    def _ways(self, placeholder: fx.Node) -> list[fx.Node]:
        nodes = [placeholder]
        if len(placeholder.users) == 1:
            numbers = self._captured.lowering.nodes
            nodes += [user for user in placeholder.users if numbers.get(user) in self._copies]
        return nodes
