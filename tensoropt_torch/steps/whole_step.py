"""Steps of optimizers that need whole matrices, on whole parameters.

Adafactor takes means of rows and of columns and norms of a parameter, which operations on parts
are not. Its own step then runs on each split parameter by itself, gathered with its gradient, on
all ranks alike, and each rank keeps its part: so numbers are those of one process, and one
whole parameter with its gradient is in memory at a time. The states, which are small, are whole
on every rank.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.steps.replaced import ReplacedParameters
from tensoropt_torch.values.parts import take_part

# Those that update each parameter by itself, but not each element.
PARAMETER_WISE = (torch.optim.Adafactor,)


def is_parameter_wise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has to be given whole parameters, one by one."""
    return any(type(optimizer).step is kind.step for kind in PARAMETER_WISE)


class WholeSteps(ReplacedParameters):
    """Makes the steps of the split parameters, which the optimizer itself does not see then. A
    step is collective."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        optimizer.register_load_state_dict_post_hook(_make_states_whole)
        _make_states_whole(optimizer)

    @torch.no_grad()
    def _replace(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter, DTensor) and parameter.grad is not None:
                    _step_of(optimizer, group, parameter)
            group["params"] = [p for p in group["params"] if not isinstance(p, DTensor)]

    def _forget(self) -> None:
        """Nothing: it keeps no parts."""

    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: each state is that of its parameter already."""


def _step_of(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: DTensor) -> None:
    whole = nn.Parameter(parameter.full_tensor(), requires_grad=False)
    whole.grad = _whole(parameter.grad).to(whole.dtype)
    groups, states = optimizer.param_groups, optimizer.state
    if parameter in states:
        states[whole] = states.pop(parameter)
    optimizer.param_groups = [{**group, "params": [whole]}]
    try:
        inspect.unwrap(type(optimizer).step)(optimizer)  # without the hooks of a step
    finally:
        optimizer.param_groups = groups
        if whole in states:
            states[parameter] = states.pop(whole)
    local = parameter._local_tensor
    local.copy_(take_part(whole.detach(), parameter.device_mesh, parameter.placements))


def _make_states_whole(optimizer: torch.optim.Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        optimizer.state[parameter] = {name: _whole(value) for name, value in state.items()}


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value
