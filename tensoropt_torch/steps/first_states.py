"""States of optimizers for parameters that have had no gradient yet.

An optimizer makes the state of a parameter at its first gradient. So the state dict of a run in
which some are not used yet lacks theirs, while PyTorch asks a checkpoint for the states of all that
are trained. State dicts of optimizers of parallel modules have them all: where there is none, the
one that the first gradient would find.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.steps.whole_step import is_parameter_wise

_ATTRIBUTE = "_tensoropt_complete_states"  # of optimizers; neither copied nor pickled with them


def complete_state_dicts(optimizer: torch.optim.Optimizer) -> None:
    """From now on its ``state_dict`` has states of all parameters that require a gradient."""
    if _of(optimizer) is None:
        setattr(optimizer, _ATTRIBUTE, _CompleteStates(optimizer))


class _CompleteStates:
    """States that are added while an optimizer makes a state dict.

    Attributes:
        left_out: parameters without a state in what was loaded, which were frozen then.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.left_out: list[nn.Parameter] = []
        self._added: list[nn.Parameter] = []
        optimizer.register_state_dict_pre_hook(self._fill)
        optimizer.register_state_dict_post_hook(self._take_back)
        optimizer.register_load_state_dict_post_hook(self._note_left_out)

    def _fill(self, optimizer: torch.optim.Optimizer) -> None:
        for group, parameter in _without_states(optimizer):
            state = _first_state(optimizer, group, parameter)
            if state:
                optimizer.state[parameter] = state
                self._added.append(parameter)

    def _take_back(self, optimizer: torch.optim.Optimizer, _: dict[str, Any]) -> None:
        while self._added:
            optimizer.state.pop(self._added.pop(), None)

    def _note_left_out(self, optimizer: torch.optim.Optimizer) -> None:
        if any(optimizer.state.values()):
            self.left_out = [
                parameter
                for group in optimizer.param_groups
                for parameter in group["params"]
                if not parameter.requires_grad and not optimizer.state.get(parameter)
            ]


def check_left_out(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Before a step: parameters whose states PyTorch may have left out of what was loaded, since
    they were frozen then, are not trained as if they never had any; those of ``module``.

    Raises:
        TensorOptError: one of them has a gradient.
    """
    own = _of(optimizer)
    if own is None or not own.left_out:
        return
    begun = {id(p) for p in own.left_out if p.grad is not None and not optimizer.state.get(p)}
    for name, parameter in module.named_parameters():
        if id(parameter) in begun:
            raise TensorOptError(
                f"parameter '{name}' was frozen when states of the optimizer were loaded, and "
                "PyTorch loads none of frozen ones: its training would begin anew. Load while it "
                "requires a gradient, and freeze it afterwards, or load with "
                "tensoropt_torch.load_optimizer, which takes all; if it never had a state, give "
                "it to the optimizer by add_param_group when it is thawed"
            )


def states_are_all_loaded(optimizer: torch.optim.Optimizer) -> None:
    """What was loaded had all states that there are."""
    own = _of(optimizer)
    if own is not None:
        own.left_out = []


def _of(optimizer: torch.optim.Optimizer) -> _CompleteStates | None:
    found: _CompleteStates | None = vars(optimizer).get(_ATTRIBUTE)
    return found


def _without_states(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[dict[str, Any], nn.Parameter]]:
    """With their groups; none if no parameter has a state."""
    if not any(optimizer.state.values()) or not hasattr(optimizer, "_init_group"):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and not optimizer.state.get(parameter):
                yield group, parameter


@torch.no_grad()
def _first_state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, Any]:
    """What the optimizer finds at the first gradient of a parameter."""
    if is_parameter_wise(optimizer):
        local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
        twin = nn.Parameter(local.new_zeros(()).expand(parameter.shape), requires_grad=False)
    else:
        twin = nn.Parameter(torch.zeros_like(parameter), requires_grad=False)
    twin.grad = twin.detach()
    init_group: Any = optimizer._init_group  # type: ignore[attr-defined]
    lists = len(inspect.signature(init_group).parameters) - 1
    init_group({**group, "params": [twin]}, *[[] for _ in range(lists)])
    state: dict[str, Any] = optimizer.state.pop(twin, {})
    if isinstance(optimizer, torch.optim.SGD) and group["momentum"] and not group["dampening"]:
        state["momentum_buffer"] = twin.detach()  # which is what the first gradient makes of it
    return {name: value for name, value in state.items() if value is not None}
