"""Which operands calls of a graph write to, by the schemas of operators.

::

    Writes(graph).reach(node)    # whether what a node gives may change while the graph runs
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.passes import gives_views
from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime.functional import batch_norm_groups
from tensoropt_torch.runtime.random import call_seeded

# The inputs of batch normalisations that these move, whatever their schemas say.
_STATISTICS = ("running_mean", "running_var")


def written(node: fx.Node) -> list[fx.Node]:
    """The operands that a call writes to."""
    found: list[fx.Node] = []
    for argument, value in _arguments(node):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _nodes_in(value)
    return found


def _read(node: fx.Node) -> list[fx.Node]:
    """The operands whose values matter to the results of a call."""
    moved = _moved_statistics(node)
    if node.target is OPS.forward_sums.default:  # which averages them, besides
        moved = written(node)
    return [operand for operand in node.all_input_nodes if operand not in moved]


def changed_inputs(graph: fx.Graph) -> tuple[list[int], bool]:
    """The numbers of the inputs that a graph writes to, and whether what it gives follows from
    what they were."""
    inputs = graph.find_nodes(op="placeholder")
    changed = {
        memory_of(operand)
        for node in graph.nodes
        for operand in (*written(node), *_moved_statistics(node))
    }
    follows = changed & {*inputs}
    for node in graph.nodes:
        if node.op != "placeholder" and follows & {*_read(node)}:
            follows.add(node)
    return [n for n, node in enumerate(inputs) if node in changed], graph.output_node() in follows


class Writes:
    """All that a graph writes to, anywhere. Views are followed by the schemas of operators, and by
    the storages of the values in the meta of nodes: what backward is given may be a view of an
    input of forward."""

    def __init__(self, graph: fx.Graph) -> None:
        operands = [operand for node in graph.nodes for operand in _maybe_written(node)]
        self._memories = {memory_of(operand) for operand in operands}
        self._storages = {storage for operand in operands for storage in _storages(operand)}

    def reach(self, node: fx.Node) -> bool:
        """Whether what a node gives is, or is a view of, what is written to."""
        return memory_of(node) in self._memories or not self._storages.isdisjoint(_storages(node))


def _maybe_written(node: fx.Node) -> list[fx.Node]:
    """The operands that a call writes to, or of which nobody says that it does not."""
    if isinstance(node.target, HigherOrderOperator) or node.op in ("call_method", "call_module"):
        return node.all_input_nodes
    return [*written(node), *_moved_statistics(node)]


def _storages(node: fx.Node) -> set[int]:
    values = pytree.tree_leaves(node.meta.get("val"))
    return {
        value.untyped_storage()._cdata
        for value in values
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
    }


def memory_of(node: fx.Node) -> fx.Node:
    """That of which a node is a view, or which it has written to."""
    while node.op == "call_function":
        mutated = written(node)
        if mutated:
            node = mutated[0]
        elif gives_views(node.target) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        elif node.target is getitem and isinstance(node.args[0], fx.Node):
            node = node.args[0]
        else:
            break
    return node


def _arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """The arguments of the schema of an operator, and what is given for them."""
    target: Any = node.target
    args = node.args
    if target is call_seeded:
        target, args = node.args[0], node.args[3:]
    if isinstance(target, OpOverload):
        schema = target._schema.arguments
        yield from zip(schema, args, strict=False)
        yield from ((a, node.kwargs[a.name]) for a in schema if a.name in node.kwargs)


def _nodes_in(value: Any) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, fx.Node)]


def _moved_statistics(node: fx.Node) -> list[fx.Node]:
    """Those that a batch normalisation in training moves, and does not read."""
    if node.target is batch_norm_groups:
        return _nodes_in(node.args[3:5])
    if "batch_norm" not in str(node.target):
        return []
    given = {argument.name: value for argument, value in _arguments(node)}
    if not given.get("training", given.get("train", True)):
        return []
    return _nodes_in([given.get(name) for name in _STATISTICS])
