"""The call of an operator on one rank, from what C++ says of it.

::

    form = LocalForm.of(program.call(graph_node))
    site = CallSite(device, group_name, step_seed)
    invocation(node, form, values, site)      # operands: values of records
    invocation(node, form, tensors, site)()   # operands: tensors
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

import tensoropt_torch.operators  # noqa: F401
from tensoropt_torch.runtime.random import call_seeded
from tensoropt_torch.space.local_form import (
    LocalForm,
    local_arguments,
    operator_named,
    target_operands,
)


@dataclass(frozen=True)
class CallSite:
    """Where calls are made.

    Attributes:
        device: of tensors that operators make.
        group_name: of this rank's process group, by axis set.
        step_seed: a number, or the value that is it.
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


def invocation(
    node: fx.Node,
    form: LocalForm,
    operands: Sequence[Any],
    site: CallSite,
    number: int | None = None,
) -> Invocation:
    """The call of ``node`` on one rank, without its halos and its scale.

    Args:
        operands: those of the rank, tensors or values of records.
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
