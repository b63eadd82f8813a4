"""Layers and experts whose weights a call of its own transposes.

What is moved between devices is moved after that call, where it is no parameter any more: by
itself, and not while the device computes. Here layers take such weights as they are.
"""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    is_cast,
    is_parameter,
    order_of,
    target_name,
    value_of,
)
from tensoropt_torch.operators import OPS

_TRANSPOSITIONS = ("aten.t.default", "aten.numpy_T.default", "aten.mT.default")
_PRODUCTS = {"aten.mm.default": "mat2", "aten.matmul.default": "other"}


def take_weights_as_they_are(graph: fx.Graph) -> None:
    """Products with a transposed parameter, ``x @ w.t()``, become linear layers, linear layers
    with one become ``linear_transposed``, and routed experts transpose their matrices
    themselves; with the same bits."""
    for node in list(graph.nodes):
        name = target_name(node)
        with graph.inserting_before(node):
            if name == "aten.linear.default":
                new = _layer(graph, node)
            elif name in _PRODUCTS:
                new = _product(graph, node, argument(node, _PRODUCTS[name]))
            elif name == "tensoropt.routed_experts.default":
                new = _experts(graph, node)
            else:
                continue
        if new is not None:
            node.replace_all_uses_with(new)


def _layer(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    weight = _turned_back(graph, argument(node, "weight"))
    if weight is None:
        return None
    operands = argument(node, "input"), weight, argument(node, "bias")
    return add_call(graph, OPS.linear_transposed.default, operands, node)


def _product(graph: fx.Graph, node: fx.Node, other: fx.Node) -> fx.Node | None:
    rows = node.args[0]
    takes_rows = value_of(rows).dim() > 1 and value_of(other).dim() == 2
    weight = _turned_back(graph, other) if takes_rows else None
    if weight is None:
        return None
    return add_call(graph, torch.ops.aten.linear.default, (rows, weight), node)


def _experts(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    if argument(node, "transposed"):
        return None
    turned = [_turned_back(graph, argument(node, name)) for name in ("up", "down")]
    if None in turned:
        return None
    args = (*node.args[:3], *turned, *node.args[5:-1], True)
    return add_call(graph, OPS.routed_experts.default, args, node)


def _turned_back(graph: fx.Graph, weight: fx.Node) -> fx.Node | None:
    """A parameter, perhaps cast, which ``weight`` is the transposed one of; None: it is not."""
    if _is_transposition(weight):
        (operand,) = weight.all_input_nodes
        return operand if _is_held(operand) else None
    if not is_cast(weight):
        return None
    turned = _turned_back(graph, weight.all_input_nodes[0])
    if turned is None:
        return None
    assert callable(weight.target)
    return add_call(graph, weight.target, (turned, *weight.args[1:]), weight, weight.kwargs)


def _is_held(node: fx.Node) -> bool:
    while is_cast(node):
        node = node.all_input_nodes[0]
    return is_parameter(node)


def _is_transposition(node: fx.Node) -> bool:
    """Of the last two dims."""
    rank = value_of(node).dim()
    if target_name(node) in _TRANSPOSITIONS:
        return rank == 2 or target_name(node) == "aten.mT.default"
    return rank >= 2 and order_of(node) == [*range(rank - 2), rank - 1, rank - 2]
