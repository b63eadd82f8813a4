"""Calls that the model makes in place, and a rank may make in place as well: images and
activations then need no second tensor, whose memory would be new in every step."""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.calls import Invocation
from tensoropt_torch.frontend.passes.nodes import IN_PLACE, computed, value_of
from tensoropt_torch.plan.local_form import LocalForm


class InPlaceCalls:
    """Knows which tensors of a graph that is written may be overwritten by their only use.

    What a call gives may be, if the rank makes the same call as the model and keeps what it
    gives: PyTorch lets the model overwrite it, so autograd does not need it.
    """

    def __init__(self) -> None:
        self._made: dict[fx.Node, fx.Node] = {}

    def made(self, old: fx.Node, new: fx.Node, form: LocalForm) -> None:
        """The call ``old`` of the captured graph has been written as ``new``."""
        if not form.target and form.scale == 1 and not form.runs_again:
            self._made[new] = old

    def of(
        self, old: fx.Node, operands: list[fx.Node], form: LocalForm, call: Invocation
    ) -> Invocation:
        """``call``, which is that of ``old`` on one rank, in place if it may be."""
        in_place = old.meta.get(IN_PLACE)
        if in_place is None or form.target or form.runs_again or not _is_twin(in_place, old.target):
            return call
        overwritten = self._made.get(operands[0])
        if overwritten is not old.args[0] or overwritten is None or len(overwritten.users) > 1:
            return call
        return Invocation(in_place, call.args, call.kwargs) if _is_fresh(overwritten) else call


def _is_twin(in_place: OpOverload, target: object) -> bool:
    """Whether the first is the second in place."""
    if not isinstance(target, OpOverload) or in_place._overloadname != target._overloadname:
        return False
    return in_place._schema.name == f"{target._schema.name}_"


def _is_fresh(node: fx.Node) -> bool:
    """Whether a call gives one tensor with memory of its own."""
    if not isinstance(node.meta["val"], torch.Tensor) or not callable(node.target):
        return False
    given = [value_of(n) for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]
    if len(given) < len(node.all_input_nodes):
        return False
    made = pytree.tree_leaves(computed(node.target, node.args, node.kwargs))
    places = {value.untyped_storage()._cdata for value in given}
    return all(value.untyped_storage()._cdata not in places for value in made)
