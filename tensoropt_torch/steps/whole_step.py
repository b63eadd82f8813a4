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
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.values.parts import take_part

# Those that update each parameter by itself, but not each element.
PARAMETER_WISE = (torch.optim.Adafactor,)

_with_whole_steps: WeakKeyDictionary[torch.optim.Optimizer, _WholeSteps] = WeakKeyDictionary()


def is_parameter_wise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has to be given whole parameters, one by one."""
    return any(type(optimizer).step is kind.step for kind in PARAMETER_WISE)


def whole_step(optimizer: torch.optim.Optimizer) -> None:
    """From now on its steps update whole parameters; a step is collective."""
    if optimizer not in _with_whole_steps:
        _with_whole_steps[optimizer] = _WholeSteps(optimizer)


def keep_whole_innermost(optimizer: torch.optim.Optimizer) -> None:
    """Other hooks of a step that is about to be made come before and after."""
    steps = _with_whole_steps.get(optimizer)
    if steps is not None:
        steps.be_innermost(optimizer)


class _WholeSteps:
    """Makes the steps of the split parameters, which the optimizer itself does not see then."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._given: list[list[Any]] = []  # parameters of the groups, during steps
        self._before = optimizer.register_step_pre_hook(self._before_step)
        self._after = optimizer.register_step_post_hook(
            lambda optimizer, *_: self._leave(optimizer)
        )
        optimizer.register_load_state_dict_post_hook(_make_states_whole)
        _make_states_whole(optimizer)

    def be_innermost(self, optimizer: torch.optim.Optimizer) -> None:
        before: Any = optimizer._optimizer_step_pre_hooks  # ordered
        after: Any = optimizer._optimizer_step_post_hooks
        before.move_to_end(self._before.id)
        after.move_to_end(self._after.id, last=False)

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of ``step``; the first is the optimizer."""
        own, *given = args
        closure = kwargs.get("closure", given[0] if given else None)
        if closure is None:
            self._update(optimizer)
            return args, kwargs

        def with_steps_of_wholes() -> Any:
            self._leave(optimizer)
            result = closure()
            self._update(optimizer)
            return result

        return (own, with_steps_of_wholes), {}

    @torch.no_grad()
    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        self._leave(optimizer)  # of a step that failed
        self._given = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter, DTensor) and parameter.grad is not None:
                    _step_of(optimizer, group, parameter)
            group["params"] = [p for p in group["params"] if not isinstance(p, DTensor)]

    def _leave(self, optimizer: torch.optim.Optimizer) -> None:
        for group, given in zip(optimizer.param_groups, self._given, strict=False):
            group["params"] = given
        self._given = []


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
