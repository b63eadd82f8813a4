"""Passes that bring calls into the one form that rules are written for."""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.frontend.passes import recurrent
from tensoropt_torch.frontend.passes.nodes import (
    argument,
    expanded,
    replace_results,
    target_name,
    value_of,
)

aten = torch.ops.aten

_RESHAPES = frozenset(
    {
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten.view_as.default",
        "aten.reshape_as.default",
    }
)

_FILLED = {
    "aten.new_zeros.default": aten.zeros.default,
    "aten.new_ones.default": aten.ones.default,
    "aten.new_full.default": aten.full.default,
    "aten.new_empty.default": aten.empty.memory_format,
}

_CASTS = frozenset({"aten.type_as.default", "aten.to.other"})


def views_to_reshapes(graph: fx.Graph) -> None:
    """A view of a local shard may need a copy where the whole did not."""
    for node in graph.nodes:
        if target_name(node) in _RESHAPES:
            sizes = node.args[1]
            if isinstance(sizes, fx.Node):  # of a tensor that has the wanted shape
                sizes = list(value_of(node).shape)
            node.target = aten.reshape.default
            node.args = (node.args[0], sizes)


def broadcasts_to_expands(graph: fx.Graph) -> None:
    """Each result of ``broadcast_tensors`` is its operand, expanded if need be."""
    for node in list(graph.nodes):
        if target_name(node) != "aten.broadcast_tensors.default":
            continue
        with graph.inserting_before(node):
            results = [
                expanded(graph, tensor, value.shape)
                for tensor, value in zip(node.args[0], node.meta["val"], strict=True)
            ]
        replace_results(graph, node, results)


def factories_without_example(graph: fx.Graph) -> None:
    """``x.new_zeros(sizes)`` takes dtype and device of x, nothing else: ``zeros``."""
    for node in graph.nodes:
        target = _FILLED.get(target_name(node))
        if target is None:
            continue
        filled = (argument(node, "fill_value"),) if target is aten.full.default else ()
        value = value_of(node)
        node.args = (argument(node, "size"), *filled)
        node.kwargs = {"dtype": value.dtype, "device": value.device}
        node.target = target


def casts_without_example(graph: fx.Graph) -> None:
    """``x.type_as(y)`` and ``x.to(y)`` take dtype and device of y, and none of its values: they
    need no part of it."""
    for node in graph.nodes:
        if target_name(node) not in _CASTS:
            continue
        given, value = value_of(node.args[0]), value_of(node)
        if given.device != value.device:
            continue
        names = () if target_name(node) == "aten.type_as.default" else ("non_blocking", "copy")
        node.args = (node.args[0], value.dtype, *(argument(node, name) for name in names))
        node.kwargs = {k: v for k, v in node.kwargs.items() if k == "memory_format"}
        node.target = aten.to.dtype


def split_recurrent_stacks(graph: fx.Graph) -> None:
    """Recurrent layers become one call for each layer and direction."""
    for node in list(graph.nodes):
        if recurrent.is_stack(node):
            with graph.inserting_before(node):
                results = recurrent.layer_by_layer(graph, node)
            replace_results(graph, node, results)
