"""Bags of embeddings that are the rows of their indices, as ``nn.EmbeddingBag`` looks up two dims.

It flattens the indices, and counts where each row begins. Bags of any size need all indices to
be cut; those that are rows are split with the indices.
"""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.frontend.passes.constants import ConstantValues
from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    replace_results,
    reshaped,
    target_name,
    value_of,
)
from tensoropt_torch.operators import OPS

_BAGS = {
    # Whether some index may be padding.
    "aten.embedding_bag.default": False,
    "aten.embedding_bag.padding_idx": True,
}


def bags_to_rows(graph: fx.Graph) -> None:
    """Bags that have equally many indices each become rows, where nobody reads what else
    the call gives, and gradients do not count how often an index occurs."""
    nodes = [node for node in graph.nodes if target_name(node) in _BAGS]
    values = ConstantValues(graph) if nodes else None
    for node in nodes:
        assert values is not None
        if argument(node, "scale_grad_by_freq") or not _are_rows(node, values):
            continue
        if any(user.args[1] != 0 for user in node.users):
            continue
        with graph.inserting_before(node):
            result = _of_rows(graph, node)
        replace_results(graph, node, [result])


def _are_rows(node: fx.Node, values: ConstantValues) -> bool:
    begins = values.of(argument(node, "offsets"))
    count = value_of(argument(node, "indices")).numel()
    bags = _number_of_bags(node)
    if begins is None or count == 0 or bags < 1:
        return False
    size, rest = divmod(count, bags)
    return rest == 0 and torch.equal(begins, torch.arange(begins.numel()).to(begins) * size)


def _number_of_bags(node: fx.Node) -> int:
    offsets: int = value_of(argument(node, "offsets")).numel()
    return offsets - 1 if argument(node, "include_last_offset") else offsets


def _of_rows(graph: fx.Graph, node: fx.Node) -> fx.Node:
    bags = _number_of_bags(node)
    indices, factors = argument(node, "indices"), argument(node, "per_sample_weights")
    rows = _as_rows(graph, indices, bags)
    factors = None if factors is None else _as_rows(graph, factors, bags)
    weight, mode = argument(node, "weight"), argument(node, "mode")
    padding = argument(node, "padding_idx") if _BAGS[target_name(node)] else None
    padding = -1 if padding is None else padding % value_of(weight).shape[0]
    args = (weight, rows, factors, mode, padding)
    return add_call(graph, OPS.embedding_bag_rows.default, args, node)


def _as_rows(graph: fx.Graph, tensor: fx.Node, bags: int) -> fx.Node:
    """``[bags, indices of each]``, of what is flat."""
    shape = [bags, value_of(tensor).numel() // bags]
    before = tensor.args[0] if target_name(tensor) == "aten.reshape.default" else tensor
    assert isinstance(before, fx.Node)
    return reshaped(graph, before, shape, tensor)
