"""Steps of a stock optimizer on what the rank has of its parameters.

Optimizers of ``torch.optim`` make them by themselves (``module/step_hooks.py``). An operation on
``DTensor``s takes some tens of microseconds before any number is changed, and an optimizer makes
ten and more for each parameter. Where each element is updated by itself, the parts can be updated
without them. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.parameters.local_parts import as_whole, local_tensor
from tensoropt_torch.steps.replaced import ReplacedParameters
from tensoropt_torch.values.parts import redistributed, take_part

AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)

# Those that update each element by itself, whatever their options.
ELEMENT_WISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.ASGD,
    torch.optim.Rprop,
)

# States that are numbers of the whole parameter.
OF_ALL_ELEMENTS = ("step", "mu_product", "eta", "mu")


def local_step(optimizer: AnyOptimizer) -> AnyOptimizer:
    """The optimizer, whose ``step`` from now on updates the local parts of its parameters.

    Optimizers of a parallel module do so from their first step on without being asked, if they
    update each element by itself; here those that do not are an error. Parameter groups and
    ``.grad`` are as before around each step, for its hooks as well, so that schedulers, clipping
    and ``GradScaler`` work as with any optimizer; ``state_dict`` and ``load_state_dict`` are
    those of ``DTensor``s, for ``torch.distributed.checkpoint`` and ``tensoropt_torch.save``.
    What ``optimizer.state`` holds in between are the rank's parts.

    Args:
        optimizer: of ``torch.optim``, made with the parameters of a parallel module.

    Raises:
        TensorOptError: it does not update each element by itself, as far as is known.
    """
    if not is_element_wise(optimizer):
        names = ", ".join(kind.__name__ for kind in ELEMENT_WISE)
        raise TensorOptError(
            "local_step is for optimizers that update each element by itself, which is not known "
            f"of {type(optimizer).__name__}; use it without local_step, or one of {names}"
        )
    LocalSteps.attach(optimizer)
    return optimizer


def is_element_wise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it updates each element by itself, as far as is known."""
    return any(type(optimizer).step is kind.step for kind in ELEMENT_WISE)


class LocalSteps(ReplacedParameters):
    """The local parts of an optimizer's parameters, which take their places during steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._parts: dict[DTensor, nn.Parameter] = {}
        self._wholes: dict[nn.Parameter, DTensor] = {}
        optimizer.register_state_dict_pre_hook(self._wrap)
        optimizer.register_state_dict_post_hook(lambda optimizer, _: self._unwrap(optimizer))
        optimizer.register_load_state_dict_post_hook(self._unwrap)
        self._unwrap(optimizer)

    def _replace(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._replaced(p) for p in group["params"]]
        _rename(optimizer, self._parts)

    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        _rename(optimizer, self._wholes)
        for part in self._wholes:
            part.grad = None

    def _forget(self) -> None:
        self._parts.clear()
        self._wholes.clear()

    def _replaced(self, parameter: nn.Parameter) -> nn.Parameter:
        if not isinstance(parameter, DTensor):
            return parameter
        part = self._part(parameter)
        gradient = parameter.grad
        part.grad = None if gradient is None else _local_gradient(gradient, parameter)
        return part

    def _part(self, parameter: DTensor) -> nn.Parameter:
        local = parameter._local_tensor
        part = self._parts.get(parameter)
        if part is None or part.data_ptr() != local.data_ptr():
            if part is not None:
                del self._wholes[part]
            part = self._parts[parameter] = nn.Parameter(local.detach(), requires_grad=False)
            self._wholes[part] = parameter
        return part

    def _wrap(self, optimizer: torch.optim.Optimizer) -> None:
        """States as ``DTensor``s."""
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, DTensor):
                optimizer.state[parameter] = {
                    name: value if name in OF_ALL_ELEMENTS else _whole(value, parameter)
                    for name, value in state.items()
                }

    def _unwrap(self, optimizer: torch.optim.Optimizer) -> None:
        """States as the rank has them."""
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, DTensor):
                optimizer.state[parameter] = {
                    n: value if n in OF_ALL_ELEMENTS else _local(value, parameter)
                    for n, value in state.items()
                }


def _rename(optimizer: torch.optim.Optimizer, names: Mapping[Any, Any]) -> None:
    """States are those of the parameters that have these names."""
    renamed = [(names.get(p, p), state) for p, state in optimizer.state.items()]
    optimizer.state.clear()
    optimizer.state.update(renamed)


def _whole(value: Any, parameter: DTensor) -> Any:
    """What a rank has for the elements of its part."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return value
    return as_whole(value, parameter)


def _local(value: Any, parameter: DTensor) -> Any:
    """What the rank has of a state, also of a whole one, as one process has written it."""
    if isinstance(value, DTensor) and value.shape == parameter.shape:
        _check_layout(value, parameter)
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
        return local_tensor(value)
    own = parameter._local_tensor.shape
    if value.shape == parameter.shape != own:
        return take_part(value, parameter.device_mesh, parameter.placements).clone()
    return value


def _check_layout(state: DTensor, parameter: DTensor) -> None:
    own, given = (
        (tuple(tensor.device_mesh.shape), tuple(tensor.placements)) for tensor in (parameter, state)
    )
    if own != given:
        raise TensorOptError(
            f"a state of the optimizer has the layout {given[1]} on a mesh of {given[0]}, and its "
            f"parameter {own[1]} on {own[0]}: give the optimizer to move_to(plan, optimizer), and "
            "load states in the layout of the parameters, or whole ones"
        )


def _local_gradient(gradient: torch.Tensor, parameter: DTensor) -> torch.Tensor:
    """In the layout of the parameter."""
    if not isinstance(gradient, DTensor):
        raise TensorOptError("the gradient of a parameter is no DTensor; leave .grad as it is made")
    # As they are made they share the description; of a pass under no_sync they have another.
    if gradient._spec is not parameter._spec and gradient.placements != parameter.placements:
        gradient = redistributed(gradient, parameter.placements)
    return gradient._local_tensor
