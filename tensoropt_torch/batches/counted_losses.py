"""Losses that divide by what they count.

A mean over valid targets becomes their sum over their number, which depends on no parameter:
it is computed before for the whole batch.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx
from torch._ops import OpOverload
from torch.nn._reduction import get_enum

from tensoropt_torch.batches.lowered import lowered
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.passes.nodes import add_call, argument, target_name, value_of


def with_counts(captured: CapturedModel) -> CapturedModel:
    """With means over valid targets as sums over their number, which can be a total."""
    old = captured.graph_module.graph
    wanted = [node for node in old.nodes if _counts_targets(node)]
    if not wanted:
        return captured
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in old.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in wanted:
        _divide_by_count(graph, copies[node])
    graph.eliminate_dead_code()
    graph.lint()
    sources = [replace(s, placeholder=copies[s.placeholder]) for s in captured.sources]
    return lowered(captured, graph, sources)


def _counts_targets(node: fx.Node) -> bool:
    known = ("aten.cross_entropy_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss.default")
    if target_name(node) not in known or argument(node, "reduction") != get_enum("mean"):
        return False
    return not value_of(argument(node, "target")).is_floating_point()


def _divide_by_count(graph: fx.Graph, loss: fx.Node) -> None:
    call = loss.target
    assert isinstance(call, OpOverload)
    values = {declared.name: argument(loss, declared.name) for declared in call._schema.arguments}
    target, weight = values["target"], values["weight"]
    aten = torch.ops.aten
    with graph.inserting_before(loss):
        valid = add_call(graph, aten.ne.Scalar, (target, values["ignore_index"]), loss)
        if weight is not None:
            classes = add_call(graph, aten.mul.Tensor, (target, valid), loss)
            shape = list(value_of(target).shape)
            flat = add_call(graph, aten.reshape.default, (classes, [-1]), loss)
            taken = add_call(graph, aten.index_select.default, (weight, 0, flat), loss)
            weights = add_call(graph, aten.reshape.default, (taken, shape), loss)
            valid = add_call(graph, aten.mul.Tensor, (weights, valid), loss)
        dtype = value_of(loss).dtype
        count = add_call(graph, aten.sum.default, (valid,), loss, {"dtype": dtype})
        total = add_call(
            graph, call, tuple({**values, "reduction": get_enum("sum")}.values()), loss
        )
        mean = add_call(graph, aten.div.Tensor, (total, count), loss)
    loss.replace_all_uses_with(mean)
    graph.erase_node(loss)
