"""Which traced graphs can be CUDA graphs, whose replays run no code of the host."""

from __future__ import annotations

import torch
from torch import fx

from tensoropt_torch.runtime.functional import NotFunctionalError

_ATEN = torch.ops.aten
# They wait for a number of the device, or make shapes of one.
_READ = frozenset(
    {
        _ATEN._local_scalar_dense.default,
        _ATEN.item.default,
        _ATEN.nonzero.default,
        _ATEN.masked_select.default,
        _ATEN.unique_consecutive.default,
        _ATEN._unique2.default,
        _ATEN.repeat_interleave.Tensor,
        _ATEN.bincount.default,
        _ATEN.equal.default,
    }
)
# Operators of ours whose kernels read numbers: the seed of the step makes a generator.
_SEEDED = frozenset({"tensoropt::keep_mask"})


def check_can_be_captured(graph: fx.Graph) -> None:
    """Raises NotFunctionalError, naming it, if something in the graph reads numbers on the host,
    has shapes that depend on values, or is computed elsewhere than on a GPU."""
    for node in graph.nodes:
        why = _why_not(node)
        if why:
            raise NotFunctionalError(f"'{node.name}' cannot be in a CUDA graph: {why}")


def _why_not(node: fx.Node) -> str:
    """Empty: it can."""
    target, value = node.target, node.meta.get("val")
    if target in _READ:
        return "it reads numbers of the device on the host"
    if isinstance(target, torch._ops.OpOverload) and target._schema.name in _SEEDED:
        return "dropout makes a generator of the seed of the step on the host"
    if not isinstance(value, torch.Tensor):
        return ""
    if any(isinstance(size, torch.SymInt) for size in value.shape):
        return "its shape depends on values"
    if value.device.type != "cuda" and not (node.op != "placeholder" and value.dim() == 0):
        return f"it is on the device '{value.device}'"
    return ""
