"""A graph around one operator call, lowered as a captured model is.

Its operands come out of sums and its outputs go into additions of another sum,
so that pending sums may enter and pass the operator.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.frontend.lowering import Lowering, lower
from tensoropt_torch.rules.call import OpCall


@dataclass(frozen=True)
class OpGraph:
    """``call`` is the operator's node, ``graph_node`` its id in the lowered graph."""

    lowering: Lowering
    call: fx.Node
    graph_node: _C.NodeId


def write_op_graph(call: OpCall, outputs: list[torch.Tensor]) -> OpGraph:
    """The graph of a call whose whole operator gave ``outputs``."""
    writer = _Writer()
    args, kwargs = pytree.tree_map(
        lambda x: writer.operand(x) if isinstance(x, torch.Tensor) else x,
        (call.args, dict(call.kwargs)),
    )
    node = writer.call(call, args, kwargs, outputs)
    lowering = lower(writer.graph, writer.sources)
    return OpGraph(lowering, node, lowering.nodes[node])


class _Writer:
    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.sources: dict[fx.Node, tuple[str, str]] = {}

    def operand(self, tensor: torch.Tensor) -> fx.Node:
        name = f"source{len(self.sources)}"
        node = self.graph.placeholder(name)
        self.sources[node] = ("input", name)
        if not tensor.requires_grad:
            node.meta["val"] = _meta(tensor)
            return node
        node.meta["val"] = _meta(tensor, 2)
        total = self.graph.call_function(torch.ops.aten.sum.dim_IntList, (node, [0]))
        total.meta["val"] = _meta(tensor)
        return total

    def call(self, call: OpCall, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> fx.Node:
        target = call.overload
        node = self.graph.call_function(target, args, kwargs)
        returns = target._schema.returns
        results = [node]
        if len(returns) > 1 or "List" in str(returns[0].type):
            node.meta["val"] = tuple(_meta(output) for output in outputs)
            getitem = operator.getitem
            results = [self.graph.call_function(getitem, (node, i)) for i in range(len(outputs))]
            for result, output in zip(results, outputs, strict=True):
                result.meta["val"] = _meta(output)
        else:
            node.meta["val"] = _meta(outputs[0])
        pairs = list(zip(results, outputs, strict=True))[: call.used]
        self.graph.output(tuple(self._consumed(*pair) for pair in pairs))
        return node

    def _consumed(self, node: fx.Node, output: torch.Tensor) -> fx.Node:
        if not (output.is_floating_point() or output.is_complex()):
            return node
        other = self.operand(output.detach().requires_grad_())
        added = self.graph.call_function(torch.ops.aten.add.Tensor, (node, other))
        added.meta["val"] = _meta(output)
        return added


def _meta(tensor: torch.Tensor, *leading: int) -> torch.Tensor:
    shape = (*leading, *tensor.shape)
    meta = torch.empty(shape, dtype=tensor.dtype, device="meta")
    return meta.requires_grad_(tensor.requires_grad)
