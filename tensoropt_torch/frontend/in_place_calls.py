"""Calls that the model makes in place, as the functional graph still knows them."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes.nodes import IN_PLACE, makes_memory


def in_place_call(node: fx.Node) -> OpOverload | None:
    """The operator that computes in place what ``node`` does, if the model called it, and
    what it overwrites is made for this call alone, in memory of its own.

    Autograd does not need what is overwritten then: PyTorch would refuse it of the model.
    """
    in_place = node.meta.get(IN_PLACE)
    if in_place is None or not _is_twin(in_place, node.target):
        return None
    first = node.args[0]
    assert isinstance(first, fx.Node)
    is_tensor = first.op == "call_function" and isinstance(first.meta["val"], torch.Tensor)
    return in_place if is_tensor and len(first.users) == 1 and makes_memory(first) else None


def _is_twin(in_place: OpOverload, target: object) -> bool:
    """Whether the first is the second in place."""
    if not isinstance(target, OpOverload) or in_place._overloadname != target._overloadname:
        return False
    return in_place._schema.name == f"{target._schema.name}_"
