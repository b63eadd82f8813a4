"""Gradients that come back for what a parallel module has returned.

Programs add to a loss what they compute of the parameters, such as ``decay * sum(p.pow(2).sum() for
p in parallel.parameters())``. That is a ``DTensor``, and so is the sum, and the gradient of the
loss. The graph of a rank computes with plain tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree


def take_plain_gradients(outputs: Any) -> None:
    """Gradients of these outputs reach the graph as plain tensors, whole on every rank."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return
    tensors = (leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor))
    for node in {tensor.grad_fn for tensor in tensors}:
        if node is not None:
            node.register_prehook(_plain)


def _plain(gradients: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if not any(isinstance(gradient, DTensor) for gradient in gradients):
        return None
    return tuple(g.full_tensor() if isinstance(g, DTensor) else g for g in gradients)
