"""Stacks of recurrent layers, layer by layer, and their weights gate by gate.

A call of ``aten.lstm`` or ``aten.gru`` with several layers or directions becomes
one call for each, with the dropout between them, so that each is a node with a
config of its own. PyTorch stacks the gates of a layer with h units: its weights are
``[gates * h, i]``, parts of which are no units. Calls of one layer take them as ``[gates, h, i]``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import add_call, target_name, value_of
from tensoropt_torch.operators import OPS

aten = torch.ops.aten


# Operator -> how many gates it has, and the operator that takes weights gate by gate.
_CELLS = {"aten.lstm.input": (4, "lstm"), "aten.gru.input": (3, "gru")}


@dataclass(frozen=True)
class _Stack:
    """The arguments of a call; ``states`` are [layers * directions, batch, units]."""

    node: fx.Node
    input: fx.Node
    states: Sequence[fx.Node]
    weights: Sequence[fx.Node]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @staticmethod
    def of(node: fx.Node) -> _Stack:
        first, states, *rest = node.args
        states = [states] if isinstance(states, fx.Node) else states
        return _Stack(node, first, states, *rest)  # type: ignore[arg-type]

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def time_dim(self) -> int:
        return 1 if self.batch_first else 0

    def weights_of(self, stack: int) -> Sequence[fx.Node]:
        count = len(self.weights) // (self.num_layers * self.directions)
        return self.weights[stack * count : (stack + 1) * count]


def is_stack(node: fx.Node) -> bool:
    """Whether the node calls several recurrent layers or directions at once."""
    if target_name(node) not in _CELLS:
        return False
    stack = _Stack.of(node)
    return stack.num_layers * stack.directions > 1


def write_out_states(graph: fx.Graph) -> None:
    """States that repeat a smaller tensor, as zeros do, lie in memory of their own: cuDNN
    takes no others."""
    as_usual = {"memory_format": torch.contiguous_format}
    for node in graph.nodes:
        if target_name(node) not in _CELLS:
            continue
        for state in dict.fromkeys(_Stack.of(node).states):
            if str(state.target) == "aten.expand.default":
                with graph.inserting_before(node):
                    copy = add_call(graph, aten.clone.default, (state,), state, as_usual)
                node.replace_input_with(state, copy)


def take_gates(graph: fx.Graph) -> None:
    """Calls of one layer take its weights gate by gate; those with projections have weights
    of other sizes and stay as they are."""
    for node in graph.nodes:
        if target_name(node) not in _CELLS or is_stack(node):
            continue
        stack, (gates, by_gates) = _Stack.of(node), _CELLS[target_name(node)]
        units = value_of(stack.states[-1]).shape[2]
        if value_of(stack.states[0]).shape[2] != units:
            continue
        with graph.inserting_before(node):
            weights: list[fx.Node | None] = [
                _by_gates(graph, weight, gates, units) for weight in stack.weights
            ]
            weights += [None] * (4 - len(weights))
            options = stack.batch_first, stack.train
            args = (stack.input, *stack.states, *weights, *options)
            target = getattr(OPS, by_gates).default
            call = add_call(graph, target, args, node)
        node.replace_all_uses_with(call)
        graph.erase_node(node)


def _by_gates(graph: fx.Graph, weight: fx.Node, gates: int, units: int) -> fx.Node:
    shape = [gates, units, *value_of(weight).shape[1:]]
    return add_call(graph, aten.reshape.default, (weight, shape), weight)


def layer_by_layer(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """The results of a stack, from calls of one layer and direction each that are
    inserted where ``graph`` inserts."""
    stack = _Stack.of(node)
    finals: list[list[fx.Node]] = [[] for _ in stack.states]
    x = stack.input
    for layer in range(stack.num_layers):
        outputs = []
        for direction in range(stack.directions):
            output, *states = _one_direction(graph, stack, x, layer, direction)
            outputs.append(output)
            for final, state in zip(finals, states, strict=True):
                final.append(state)
        x = _joined(graph, stack, outputs, 2)
        if stack.dropout > 0 and stack.train and layer + 1 < stack.num_layers:
            x = _call(graph, stack, aten.dropout.default, (x, stack.dropout, True), value_of(x))
    return [x, *(_joined(graph, stack, final, 0) for final in finals)]


def _one_direction(
    graph: fx.Graph, stack: _Stack, x: fx.Node, layer: int, direction: int
) -> list[fx.Node]:
    """Output and last states; the second direction goes from the end to the start."""
    index = layer * stack.directions + direction
    if direction == 1:
        x = _reversed(graph, stack, x)
    states = [
        _call(graph, stack, aten.slice.Tensor, (state, 0, index, index + 1), value_of(state)[:1])
        for state in stack.states
    ]
    call = graph.call_function(
        stack.node.target,  # type: ignore[arg-type]
        (
            x,
            states[0] if len(states) == 1 else states,
            list(stack.weights_of(index)),
            stack.has_biases,
            1,
            0.0,
            stack.train,
            False,
            stack.batch_first,
        ),
    )
    sizes = (*value_of(x).shape[:2], value_of(states[0]).shape[2])
    values = [value_of(x).new_empty(sizes), *(value_of(state) for state in states)]
    call.meta = {**stack.node.meta, "val": tuple(values)}
    output, *finals = (
        _call(graph, stack, operator.getitem, (call, i), value) for i, value in enumerate(values)
    )
    return [_reversed(graph, stack, output) if direction == 1 else output, *finals]


def _reversed(graph: fx.Graph, stack: _Stack, x: fx.Node) -> fx.Node:
    return _call(graph, stack, aten.flip.default, (x, [stack.time_dim]), value_of(x))


def _joined(graph: fx.Graph, stack: _Stack, parts: list[fx.Node], dim: int) -> fx.Node:
    if len(parts) == 1:
        return parts[0]
    value = torch.cat([value_of(part) for part in parts], dim)
    return _call(graph, stack, aten.cat.default, (parts, dim), value)


def _call(
    graph: fx.Graph, stack: _Stack, target: Any, args: tuple[Any, ...], value: torch.Tensor
) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta = {**stack.node.meta, "val": value}
    return node
