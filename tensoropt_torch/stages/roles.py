"""What matters of the nodes of a captured graph where it is cut: which are cheap and depend on
inputs only, which on parameters only, which change buffers, and whose values have gradients."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.passes.nodes import (
    changes_memory,
    is_python_call,
    running_statistics,
)

# Operators whose work is more than that of reading operands and writing results.
HEAVY = frozenset(
    {
        *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "einsum"),
        *("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d"),
        *("conv_transpose3d", "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh"),
        *("rnn_relu", "bilinear", "tensordot", "sort", "cdist", "cumsum", "cumprod"),
    }
)
_DETACHED = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)


def is_heavy(node: fx.Node) -> bool:
    """Whether a call is no cheap one: products, and what no file of ATen has."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    return target.namespace != "aten" or target._schema.name.removeprefix("aten::") in HEAVY


def draws_numbers(node: fx.Node) -> bool:
    """Whether a call may take random numbers."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def changed_by(node: fx.Node) -> list[fx.Node]:
    """The placeholders whose memory a call changes."""
    found = list(running_statistics(node))
    if changes_memory(node):
        first = node.args[0]
        assert isinstance(first, fx.Node)
        found.append(first)
    return [memory for memory in found if memory.op == "placeholder"]


class Roles:
    """Of the nodes of a graph.

    Attributes:
        calls: all calls, in their order.
        changed: the buffers that forward changes.
        again: calls that are cheap and depend on inputs, or on parameters, but not on both, and on
            no random number: each stage that uses them makes them again.
        before_batch: other calls that depend on no input.
        trained: values that have a gradient: they depend on a trained source, and the loss on
            them, or other ``ends`` of which a loss is computed.
        owning: calls that take a trained parameter, by themselves or through what is made again:
            the stage that has one has something for an optimizer.
    """

    def __init__(
        self, captured: CapturedModel, loss: fx.Node | None, ends: Iterable[fx.Node] = ()
    ) -> None:
        nodes = list(captured.graph_module.graph.nodes)
        kinds = {source.placeholder: source.kind for source in captured.sources}
        self.calls = [node for node in nodes if node.op == "call_function"]
        self.changed = frozenset(memory for node in self.calls for memory in changed_by(node))
        self._acting = {node for node in self.calls if _acts(node)}
        stays = kinds.keys() - self.changed
        parameters = {node for node in stays if kinds[node] == "parameter"}
        inputs = {node for node in stays if kinds[node] in ("input", "total")}
        self.before_batch = self._depending_on(stays - inputs)
        self.again = self._cheap(stays - inputs) | self._cheap(stays - parameters)
        self.before_batch -= self.again
        own = set() if loss is None else {loss}
        self.trained = _with_gradients(captured, own.union(ends))
        trained = {s.placeholder for s in captured.parameters if _requires_gradient(s.placeholder)}
        self.owning = self._taking(trained)

    def _depending_on(self, sources: set[fx.Node]) -> set[fx.Node]:
        """Calls that depend on nothing but these sources."""
        known = set(sources)
        for node in self.calls:
            if node not in self._acting and known.issuperset(node.all_input_nodes):
                known.add(node)
        return known - sources

    def _cheap(self, sources: set[fx.Node]) -> set[fx.Node]:
        """Those of them whose own calls, and those that they depend on, are cheap."""
        known = set(sources)
        for node in self.calls:
            cheap = node not in self._acting and not is_heavy(node)
            if cheap and known.issuperset(node.all_input_nodes):
                known.add(node)
        return known - sources

    def _taking(self, sources: set[fx.Node]) -> frozenset[fx.Node]:
        """Calls that are made once and take one of these."""
        known = set(sources)
        for node in self.calls:
            if node in self.again and not known.isdisjoint(node.all_input_nodes):
                known.add(node)
        taking = (node for node in self.calls if not known.isdisjoint(node.all_input_nodes))
        return frozenset(taking) - self.again

    def needed_again(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """The calls that are made again for these nodes."""
        found: set[fx.Node] = set()
        waiting = [o for node in nodes for o in node.all_input_nodes if o in self.again]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += [o for o in node.all_input_nodes if o in self.again]
        return found


def _acts(node: fx.Node) -> bool:
    """Whether a call does more than to compute what it gives."""
    return (
        draws_numbers(node)
        or is_python_call(node)
        or bool(changed_by(node))
        or changes_memory(node)
        or not (isinstance(node.target, OpOverload) or node.target is operator.getitem)
    )


def floating_outputs(captured: CapturedModel) -> list[fx.Node]:
    """The outputs that a loss may be computed of."""
    nodes = captured.graph_module.graph.output_node().all_input_nodes
    return [node for node in nodes if any(t.is_floating_point() for t in tensors_of(node))]


def _with_gradients(captured: CapturedModel, ends: set[fx.Node]) -> set[fx.Node]:
    """Nodes between trained sources and the ends, along gradients."""
    nodes = list(captured.graph_module.graph.nodes)
    below: set[fx.Node] = set()
    for node in nodes:
        if node.op == "placeholder":
            if _requires_gradient(node):
                below.add(node)
        elif _passes(node) and any(operand in below for operand in node.all_input_nodes):
            below.add(node)
    reached = set(ends)
    for node in reversed(nodes):
        if node in reached and node in below and node.op == "call_function":
            reached.update(node.all_input_nodes)
    return below & reached


def _requires_gradient(placeholder: fx.Node) -> bool:
    value = placeholder.meta.get("val")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _passes(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target in _DETACHED:
        return False
    return any(t.is_floating_point() or t.is_complex() for t in tensors_of(node))


def tensors_of(node: fx.Node) -> Iterator[torch.Tensor]:
    """The fake tensors of what a node gives."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            yield value
