"""Operators whose backward gives sparse gradients: ``nn.Embedding(sparse=True)``.

Reshards and buckets move dense tensors, so gradients are dense: the same values, with zeros for
the rows that no index reads.
"""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes.nodes import argument, target_name

# The argument that asks for them.
_ASKS = {
    "aten.embedding.default": "sparse",
    "aten.embedding_bag.default": "sparse",
    "aten.embedding_bag.padding_idx": "sparse",
    "aten.gather.default": "sparse_grad",
}


def make_gradients_dense(graph: fx.Graph) -> None:
    """Such calls give dense gradients."""
    for node in graph.nodes:
        asks = _ASKS.get(target_name(node))
        if asks is not None and argument(node, asks):
            _set_false(node, asks)


def _set_false(node: fx.Node, name: str) -> None:
    assert isinstance(node.target, OpOverload)
    position = [a.name for a in node.target._schema.arguments].index(name)
    if position < len(node.args):
        node.update_arg(position, False)
    else:
        node.update_kwarg(name, False)
