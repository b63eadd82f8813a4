"""Calls that the model makes in place, as the functional graph still knows them."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.passes.nodes import IN_PLACE, computed, value_of


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
    return in_place if len(first.users) == 1 and _is_fresh(first) else None


def _is_twin(in_place: OpOverload, target: object) -> bool:
    """Whether the first is the second in place."""
    if not isinstance(target, OpOverload) or in_place._overloadname != target._overloadname:
        return False
    return in_place._schema.name == f"{target._schema.name}_"


def _is_fresh(node: fx.Node) -> bool:
    """Whether a call gives one tensor with memory of its own."""
    if node.op != "call_function" or not isinstance(node.meta["val"], torch.Tensor):
        return False
    given = [n.meta["val"] for n in node.all_input_nodes]
    if not all(isinstance(value, torch.Tensor) for value in given):
        return False
    assert callable(node.target)
    made = pytree.tree_leaves(computed(node.target, node.args, node.kwargs))
    places = {value_of(n).untyped_storage()._cdata for n in node.all_input_nodes}
    return all(value.untyped_storage()._cdata not in places for value in made)
