"""Batch normalisation by groups of rows."""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import add_call, source_line, target_name, value_of
from tensoropt_torch.operators import OPS

aten = torch.ops.aten


def group_batch_norms(graph: fx.Graph, groups: int) -> None:
    """Calls of ``batch_norm`` in training take the statistics of each of ``groups`` parts of
    dim 0, but those of ``nn.SyncBatchNorm``.

    Raises:
        TensorOptError: a group would have a single number in each channel.
    """
    if groups == 1:
        return
    for node in list(graph.nodes):
        if target_name(node) != "aten.batch_norm.default" or not node.args[5]:
            continue
        if not _is_of_sync_batch_norm(node):
            _group(graph, node, groups)


def _is_of_sync_batch_norm(node: fx.Node) -> bool:
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    return bool(modules) and "SyncBatchNorm" in str(modules[-1][1])


def _group(graph: fx.Graph, node: fx.Node, groups: int) -> None:
    value, *rest = node.args
    *others, _, momentum, eps, _ = rest
    assert isinstance(value, fx.Node)
    shape = value_of(value).shape
    sizes = [len(rows) for rows in torch.empty(shape[0]).chunk(groups)]
    if min(sizes) * shape[2:].numel() < 2:
        raise TensorOptError(
            f"operator '{node.name}' ({node.target}) normalises [{', '.join(map(str, shape))}] in "
            f"batch_norm_groups = {groups}, of which one has a single number in each channel and "
            f"so no variance; give a batch of {2 * groups} rows or fewer groups{source_line(node)}"
        )
    with graph.inserting_before(node):
        args = (value, *others, momentum, eps, groups)
        new = add_call(graph, OPS.batch_norm_groups.default, args, node)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
