"""Dims that a reshape merges with others, and another one takes apart again.

Only the outermost of merged dims can be split. ``nn.MultiheadAttention`` calls its products with
batch and heads in one dim, and its layers with positions and batch in one dim, so that neither
heads nor rows could be split. Here what lies in between works on the dims themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    order_of,
    reshaped,
    target_name,
    value_of,
)
from tensoropt_torch.operators import OPS

aten = torch.ops.aten

_RESHAPE = "aten.reshape.default"
# Layers and the name of their input, whose rows are those of the output.
_LAYERS = {
    "aten.linear.default": "input",
    "tensoropt.linear_blocks.default": "input",
    "tensoropt.linear_transposed.default": "input",
    "aten.addmm.default": "mat1",
}


def split_before_permutations(graph: fx.Graph) -> None:
    """``reshape``, permutation, ``reshape``: the first one splits what the last one did."""
    for node in list(graph.nodes):
        order = order_of(node)
        if order is None:
            continue
        for user in list(node.users):
            if target_name(user) == _RESHAPE:
                _split_before(graph, node, order, user)


def keep_rows_apart(graph: fx.Graph) -> None:
    """A layer of rows that a reshape has made one dim, and that others make several again, works
    on several."""
    for node in list(graph.nodes):
        if target_name(node) in _LAYERS:
            _keep_apart(graph, node)


def _split_before(
    graph: fx.Graph, permutation: fx.Node, order: Sequence[int], split: fx.Node
) -> None:
    merged = permutation.args[0]
    if not isinstance(merged, fx.Node) or target_name(merged) != _RESHAPE:
        return
    parts = _refinement(value_of(permutation).shape, value_of(split).shape)
    if parts is None or all(len(sizes) == 1 for sizes in parts):
        return
    by_dim = dict(zip(order, parts, strict=True))
    starts = {}
    sizes: list[int] = []
    for dim in range(len(order)):
        starts[dim] = len(sizes)
        sizes += by_dim[dim]
    inner = [starts[dim] + place for dim in order for place in range(len(by_dim[dim]))]
    with graph.inserting_before(split):
        finer = add_call(graph, aten.reshape.default, (merged.args[0], sizes), merged)
        permuted = add_call(graph, aten.permute.default, (finer, inner), permutation)
    split.replace_all_uses_with(permuted)


def _refinement(shape: Sequence[int], finer: Sequence[int]) -> list[list[int]] | None:
    """For each size of a shape, the ones that follow each other in ``finer`` of which it is the
    product; None: it is not so."""
    rest = list(finer)
    found = []
    for size in shape:
        if size == 0 or not rest:
            return None
        part = [rest.pop(0)]
        while math.prod(part) < size and rest:
            part.append(rest.pop(0))
        if math.prod(part) != size:
            return None
        found.append(part)
    return found if not rest else None


def _keep_apart(graph: fx.Graph, layer: fx.Node) -> None:
    merged = argument(layer, _LAYERS[target_name(layer)])
    if not isinstance(merged, fx.Node) or target_name(merged) != _RESHAPE:
        return
    rows, width = value_of(layer).shape[0], value_of(merged).shape[-1]
    if value_of(merged).dim() != 2 or not layer.users:
        return
    (whole,) = merged.all_input_nodes
    lead = _leading(value_of(whole).shape, rows, width)
    if lead is None:
        # What is merged cuts a dim in two, as the products of attention with batch and heads in
        # one dim do; what follows says of which dims the rows are.
        user = next(iter(layer.users))
        lead = _leading(value_of(user).shape, rows, value_of(layer).shape[-1])
    if lead is None or len(lead) < 2:
        return
    for user in layer.users:
        if target_name(user) != _RESHAPE or list(value_of(user).shape[: len(lead)]) != lead:
            return
    with graph.inserting_before(layer):
        apart = reshaped(graph, whole, [*lead, width], merged)
        new = _layer_of(graph, layer, apart)
    if new is None:
        return
    for user in list(layer.users):
        with graph.inserting_before(user):
            user.replace_all_uses_with(reshaped(graph, new, value_of(user).shape, user))


def _layer_of(graph: fx.Graph, layer: fx.Node, rows: fx.Node) -> fx.Node | None:
    """The layer of these rows; None: it has no form for them."""
    if target_name(layer) != "aten.addmm.default":
        assert callable(layer.target)
        return add_call(graph, layer.target, (rows, *layer.args[1:]), layer, layer.kwargs)
    bias, weight = argument(layer, "self"), argument(layer, "mat2")
    scaled = argument(layer, "beta") != 1 or argument(layer, "alpha") != 1
    if scaled or value_of(bias).dim() != 1:
        return None
    target = OPS.linear_transposed.default
    return add_call(graph, target, (rows, weight, bias), layer)


def _leading(shape: Sequence[int], rows: int, width: int) -> list[int] | None:
    """The first sizes of a shape, whose product is ``rows`` where the others' is ``width``."""
    for count in range(1, len(shape)):
        if math.prod(shape[:count]) == rows and math.prod(shape[count:]) == width:
            return list(shape[:count])
    return None
