"""The call of an operator on one rank, from what C++ says of it.

::

    form = LocalForm.of(program.call(graph_node))
    site = CallSite(device, group_name, step_seed)
    invocation(node, form, operands, site).write(graph)   # operands: nodes of the graph
    invocation(node, form, tensors, site)()               # operands: tensors
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

import tensoropt_torch.runtime.ctc_losses  # noqa: F401 (its operator)
from tensoropt_torch.plan.local_form import (
    LocalForm,
    local_arguments,
    operator_named,
    target_operands,
)
from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.runtime.recomputation import (
    recomputed,
    recomputed_beside,
    recomputed_draw,
)


@dataclass(frozen=True)
class CallSite:
    """Where calls are made.

    Attributes:
        device: of tensors that operators make.
        group_name: of this rank's process group, by axis set.
        step_seed: a number, or the node that gives it.
    """

    device: torch.device
    group_name: Callable[[int], str]
    step_seed: Any = 0


@dataclass(frozen=True)
class Invocation:
    """What is called, and with what."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Calls it with real tensors."""
        return self.function(*self.args, **self.kwargs)

    def write(
        self, graph: fx.Graph, runs_again: bool = False, moved: Sequence[fx.Node] = ()
    ) -> fx.Node:
        """Adds the call to a graph; ``runs_again``: in backward too, with those of its operands
        that are ``moved`` since as they were."""
        function, args = self.function, self.args
        if runs_again and function is call_seeded:
            function = recomputed_draw
        elif runs_again and moved:
            function, args = recomputed_beside, (tuple(moved), function, *args)
        elif runs_again:
            function, args = recomputed, (function, *args)
        return graph.call_function(function, args, dict(self.kwargs))


def invocation(
    node: fx.Node,
    form: LocalForm,
    operands: Sequence[Any],
    site: CallSite,
    number: int | None = None,
) -> Invocation:
    """The call of ``node`` on one rank, without its halos and its scale.

    Args:
        operands: those of the rank, tensors or nodes of the graph that is written.
        number: which of the random calls of a step it is; None: it is not random.
    """
    target = operator_named(form.target) if form.target else node.target
    assert isinstance(target, OpOverload), form.target
    if form.target:
        tensors = target_operands(node, form.operands, operands)
        names = [site.group_name(axes) if axes else "" for axes in form.groups]
        call = Invocation(target, (*tensors, *form.extra, *names))
    else:
        call = Invocation(target, *local_arguments(node, form.arguments, operands, site.device))
    if number is None:
        return call
    stream = (number, form.shard_index)
    return Invocation(call_seeded, (target, site.step_seed, stream, *call.args), call.kwargs)


def draws(node: fx.Node, form: LocalForm, with_rule: Container[str]) -> bool:
    """Whether the call draws from random generators, of which operators without a rule
    (those not in ``with_rule``) say so themselves. All ranks draw the same for them."""
    assert isinstance(node.target, OpOverload)
    unknown = str(node.target) not in with_rule
    tagged = torch.Tag.nondeterministic_seeded in node.target.tags
    return form.random or (unknown and tagged)
