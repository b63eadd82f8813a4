"""Which steps of a rank can be one function each of forward and backward.

::

    step = boxed_step(rank_graph, own, captured, registry)  # None: it runs operator by operator
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.boxed import BoxedStep, Registry
from tensoropt_torch.emit.recorder import can_be_recorded
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.passes import target_name


def boxed_step(
    rank_graph: fx.GraphModule,
    own: Sequence[int],
    captured: CapturedModel,
    registry: Registry,
    *,
    called: bool = False,
) -> BoxedStep | None:
    """The step of a rank, whose inputs of these numbers are its ``own``; None: it has Python of the
    model, or what cannot be recorded; or, unless it is only ``called``, several outputs have
    gradients, each of which autograd may be asked for, or be told by hooks, while all of them
    have one node here."""
    if not called and len(_with_gradients(captured)) > 1:
        return None
    return BoxedStep(rank_graph, own, registry) if is_recorded(rank_graph.graph) else None


def is_recorded(graph: fx.Graph) -> bool:
    """Whether all that the graph of a rank calls can be."""
    calls = (node for node in graph.nodes if node.op not in ("placeholder", "output"))
    return all(map(can_be_recorded, calls))


def _with_gradients(captured: CapturedModel) -> set[fx.Node]:
    """The outputs of the graph that may have gradients: those that follow from parameters, or
    from inputs of floating-point numbers."""
    kinds = ("parameter", "input")
    found = {s.placeholder for s in captured.sources if s.kind in kinds and _is_real(s.placeholder)}
    graph = captured.graph_module.graph
    for node in graph.nodes:
        cuts = target_name(node) == "aten.detach.default" or not _is_real(node)
        if node.op == "call_function" and not cuts and found & {*node.all_input_nodes}:
            found.add(node)
    return found & {*graph.output_node().all_input_nodes}


def _is_real(node: fx.Node) -> bool:
    """Whether it is, or has among its parts, a tensor of floating-point or complex numbers."""
    values = pytree.tree_leaves(node.meta.get("val"))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
