"""Operators without a rule that PyTorch itself composes of operators with one."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.frontend.passes.forms import views_to_reshapes
from tensoropt_torch.frontend.passes.functional import functionalise_in_place
from tensoropt_torch.frontend.passes.nodes import replace_results, target_name

aten = torch.ops.aten

_SAFE = {
    "aten.unsafe_chunk.default": aten.chunk.default,
    "aten.unsafe_split.Tensor": aten.split.Tensor,
    "aten.unsafe_split_with_sizes.default": aten.split_with_sizes.default,
}


def decompose_composites(graph: fx.Graph) -> None:
    """Replace such a call by its parts if all of them have rules; else it stays whole."""
    known = frozenset(_C.current_rules().targets())
    for node in list(graph.nodes):
        name = target_name(node)
        if not name or name in known or not node.target._can_decompose():
            continue
        parts = _parts(node)
        if parts is not None and _targets(parts) <= known:
            _replace(graph, node, parts)


def _targets(parts: fx.GraphModule) -> set[str]:
    return {target_name(part) for part in parts.graph.nodes} - {""}


def _parts(node: fx.Node) -> fx.GraphModule | None:
    """The graph of a call, from its tensor operands to its results."""
    target = node.target
    assert isinstance(target, OpOverload)
    operands = [operand.meta["val"] for operand in node.all_input_nodes]

    def call(*tensors: Any) -> Any:
        given = dict(zip(node.all_input_nodes, tensors, strict=True))
        return target(*fx.map_arg(node.args, lambda used: given[used]), **kwargs(given))

    def kwargs(given: dict[fx.Node, Any]) -> dict[str, Any]:
        return dict(fx.map_arg(node.kwargs, lambda used: given[used]))

    table = {target: target.decompose}
    try:
        with torch.no_grad():
            parts = make_fx(call, decomposition_table=table, pre_dispatch=True)(*operands)
        for run in (functionalise_in_place, views_to_reshapes, _splits_to_views):
            run(parts.graph)
    except Exception:  # whatever PyTorch raises: the call stays as it is
        return None
    return parts


def _splits_to_views(graph: fx.Graph) -> None:
    """``unsafe_chunk`` promises that nobody changes its results, and nobody does."""
    for node in graph.nodes:
        safe = _SAFE.get(target_name(node))
        if safe is not None:
            node.target = safe


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
