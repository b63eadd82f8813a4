"""Calls that the model makes in place, and a rank may make in place as well: activations then
need no second tensor, whose memory would be new in every step."""

from __future__ import annotations

from torch import fx

from tensoropt_torch.emit.local_calls import Invocation
from tensoropt_torch.frontend.in_place import in_place_call
from tensoropt_torch.plan.local_form import LocalForm


class InPlaceCalls:
    """Knows which nodes of a graph that is written are the model's own calls: what these give
    may be overwritten as in the model. What others give, such as reshards, may not: their
    autograd may have saved it."""

    def __init__(self) -> None:
        self._made: dict[fx.Node, fx.Node] = {}

    def written(self, old: fx.Node, new: fx.Node, form: LocalForm) -> None:
        """The call ``old`` of the captured graph has become ``new``."""
        if not form.target and form.scale == 1 and not form.runs_again:
            self._made[new] = old

    def of(
        self, old: fx.Node, operands: list[fx.Node], form: LocalForm, call: Invocation
    ) -> Invocation:
        """``call``, which is that of ``old`` on one rank, in place if it may be."""
        if call.function is not old.target or form.runs_again or not operands:
            return call
        if self._made.get(operands[0]) is not old.args[0]:
            return call
        target = in_place_call(old)
        return call if target is None else Invocation(target, call.args, call.kwargs)
