"""Operators without a rule that PyTorch itself composes of operators with one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.frontend.passes.nodes import replace_results, target_name


def decompose_composites(graph: fx.Graph) -> None:
    """Replace such a call by its parts if all of them have rules; else it stays whole."""
    known = frozenset(_C.rule_targets())
    for node in list(graph.nodes):
        name = target_name(node)
        if not name or name in known or not node.target._can_decompose():
            continue
        parts = _parts(node)
        if parts is not None and _targets(parts) <= known:
            _replace(graph, node, parts)


def _targets(parts: fx.GraphModule) -> Collection[str]:
    return {target_name(part) for part in parts.graph.nodes} - {""}


def _parts(node: fx.Node) -> fx.GraphModule | None:
    """The graph of a call, from its tensor operands to its results."""
    target = node.target
    assert isinstance(target, OpOverload)
    operands = [operand.meta["val"] for operand in node.all_input_nodes]

    def call(*tensors: Any) -> Any:
        given = dict(zip(node.all_input_nodes, tensors, strict=True))
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda used: given[used])
        return target.decompose(*args, **kwargs)

    try:
        with torch.no_grad():
            return make_fx(call, pre_dispatch=True)(*operands)
    except Exception:  # whatever PyTorch raises: the call stays as it is
        return None


def _replace(graph: fx.Graph, node: fx.Node, parts: fx.GraphModule) -> None:
    placeholders = parts.graph.find_nodes(op="placeholder")
    replaced: dict[fx.Node, Any] = dict(zip(placeholders, node.all_input_nodes, strict=True))
    results: Any = None
    with graph.inserting_before(node):
        for part in parts.graph.nodes:
            if part.op == "output":
                results = fx.map_arg(part.args[0], lambda used: replaced[used])
            elif part.op != "placeholder":
                new = graph.node_copy(part, lambda used: replaced[used])
                new.meta = {**node.meta, "val": part.meta["val"]}
                replaced[part] = new
    if isinstance(node.meta["val"], (tuple, list)):
        replace_results(graph, node, pytree.tree_leaves(results))
    else:
        node.replace_all_uses_with(results)
        graph.erase_node(node)
