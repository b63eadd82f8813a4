"""Where inputs and outputs have the rows of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.space.settings import InputShares


@dataclass(frozen=True)
class OutputRows:
    """Of an output of a captured graph.

    Attributes:
        dim: which of its dims has the rows of the batch; None: it has none, or they are not
            together.
        depends: whether it depends on the batch.
        is_loss: whether it is what is trained on.
    """

    dim: int | None = None
    depends: bool = False
    is_loss: bool = False


def rows_of_inputs(captured: CapturedModel, shares: InputShares) -> dict[str, int]:
    """The dims of inputs that have the rows of the batch, by name."""
    found = {}
    for source in captured.inputs:
        dim = shares.rows_dim(source.names[0])
        is_tensor = source.kind == "input" and source.placeholder.meta["val"].dim() > 0
        if is_tensor and dim is not None:
            found[source.names[0]] = dim
    return found


def rows_of_outputs(
    captured: CapturedModel, space: _C.SearchSpace, shares: InputShares, count: int
) -> tuple[OutputRows, ...]:
    """Of all outputs without their containers, those that are no tensors included.

    Args:
        shares: which inputs are shared out.
        count: into so many; what has no such number of equal shares is whole, and has no rows. 1
            if the graph is of a batch that was gathered.
    """
    node = captured.graph_module.graph.output_node()
    rows = space.output_rows(rows_of_inputs(captured, shares))
    by_node = dict(zip(node.all_input_nodes, rows, strict=True))
    loss = loss_node(captured)

    def found(output: object) -> OutputRows:
        if not isinstance(output, fx.Node):
            return OutputRows()
        row = by_node[output]
        dim, depends = row.dim, row.depends
        size = output.meta["val"].shape[dim] if dim >= 0 else 1
        is_whole = dim < 0 or size % count != 0
        return OutputRows(None if is_whole else dim, depends, output is loss)

    return tuple(found(output) for output in _outputs(captured))


def loss_node(captured: CapturedModel) -> fx.Node | None:
    """The output that is trained on: what the container of the outputs calls ``loss``, else
    the first one, if that is a scalar that may have a gradient."""
    outputs = _outputs(captured)
    tree: Any = pytree.tree_unflatten(list(range(len(outputs))), captured.out_spec)
    if captured.attributes.written is not None:
        tree, _ = tree
    index = tree.get("loss") if isinstance(tree, Mapping) else getattr(tree, "loss", None)
    index = 0 if index is None else index
    node = outputs[index] if isinstance(index, int) and outputs else None
    if not isinstance(node, fx.Node):
        return None
    value = node.meta["val"]
    is_scalar = isinstance(value, torch.Tensor) and value.dim() == 0
    return node if is_scalar and value.is_floating_point() else None


def loss_output(captured: CapturedModel) -> int:
    """The number of the loss among the different tensors that leave the graph; -1: there is
    none."""
    nodes = captured.graph_module.graph.output_node().all_input_nodes
    loss = loss_node(captured)
    return -1 if loss is None else nodes.index(loss)


def _outputs(captured: CapturedModel) -> list[Any]:
    return list(captured.graph_module.graph.output_node().args[0])  # type: ignore[arg-type]
