"""Steps of a stock optimizer on what the rank has of its parameters.

Optimizers of ``torch.optim`` make them by themselves (``module/step_hooks.py``). An operation on
``DTensor``s takes some tens of microseconds before any number is changed, and an optimizer makes
ten and more for each parameter. Where each element is updated by itself, the parts can be updated
without them. The numbers are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, is_
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

_GRADIENT, _SPEC, _LOCAL = attrgetter("grad"), attrgetter("_spec"), attrgetter("_local_tensor")
_ADDRESS: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr

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
    """The local parts of an optimizer's parameters, which take their places during steps.

    What it made for a step is taken for the next one, as long as all is as it was: parameters have
    the memory that they had, and states are the same objects.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._parts: dict[DTensor, nn.Parameter] = {}
        self._wholes: dict[nn.Parameter, DTensor] = {}
        self._groups: list[_Group] = []
        self._renamed: _Renamed | None = None
        self._between: Any = None  # during steps, the states as they are otherwise
        optimizer.register_state_dict_pre_hook(self._wrap)
        optimizer.register_state_dict_post_hook(lambda optimizer, _: self._unwrap(optimizer))
        optimizer.register_load_state_dict_post_hook(self._unwrap)
        self._unwrap(optimizer)

    def _replace(self, optimizer: torch.optim.Optimizer) -> None:
        given = [group["params"] for group in optimizer.param_groups]
        known = self._groups
        if len(known) != len(given) or not all(map(_Group.is_of, known, given)):
            self._groups = [_Group.of(own, [*map(self._part, own)]) for own in given]
            self._renamed = None
        for group, own in zip(optimizer.param_groups, self._groups, strict=True):
            own.take_gradients()
            group["params"] = [*own.parts]
        self._between = optimizer.state
        if self._renamed is None or not self._renamed.is_of(optimizer.state):
            self._renamed = _Renamed.of(optimizer.state, self._parts)
        optimizer.state = self._renamed.states

    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        for own in self._groups:
            own.drop_gradients()
        if self._between is None:  # a gradient was no local one
            return
        if self._renamed is None or not self._renamed.is_unchanged():  # as after the first step
            made = [(self._wholes.get(p, p), state) for p, state in optimizer.state.items()]  # type: ignore[call-overload]
            self._between.clear()
            self._between.update(made)
            self._renamed = None
        optimizer.state, self._between = self._between, None

    def _forget(self) -> None:
        self._parts.clear()
        self._wholes.clear()
        self._groups, self._renamed = [], None

    def _part(self, parameter: nn.Parameter) -> nn.Parameter:
        if not isinstance(parameter, DTensor):
            return parameter
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
        self._renamed = None
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, DTensor):
                optimizer.state[parameter] = {
                    n: value if n in OF_ALL_ELEMENTS else _local(value, parameter)
                    for n, value in state.items()
                }


@dataclass(frozen=True)
class _Group:
    """The parameters of a group.

    Attributes:
        parts: what takes their places; those that are no ``DTensor`` stay.
        wholes, split: the others, and their parts.
        specs, memory: how those lie.
    """

    given: list[nn.Parameter]
    parts: list[nn.Parameter]
    wholes: list[DTensor]
    split: list[nn.Parameter]
    specs: list[Any]
    memory: list[int]

    @staticmethod
    def of(given: Sequence[nn.Parameter], parts: list[nn.Parameter]) -> _Group:
        """As they are now."""
        both = [(p, part) for p, part in zip(given, parts, strict=True) if isinstance(p, DTensor)]
        wholes: list[DTensor] = [whole for whole, _ in both]
        split = [part for _, part in both]
        return _Group([*given], parts, wholes, split, [*map(_SPEC, wholes)], _memory_of(wholes))

    def is_of(self, given: Sequence[nn.Parameter]) -> bool:
        """Whether it still is."""
        return _are_same(self.given, given) and _memory_of(self.wholes) == self.memory

    def take_gradients(self) -> None:
        """Parts get the rank's parts of the gradients."""
        gradients = [*map(_GRADIENT, self.wholes)]
        if all(map(is_, map(type, gradients), repeat(DTensor))) and _are_same(
            self.specs, [*map(_SPEC, gradients)]
        ):  # as they are made
            found: Iterable[torch.Tensor | None] = map(_LOCAL, gradients)
        else:
            own = zip(gradients, self.wholes, strict=True)
            found = [None if g is None else _local_gradient(g, p) for g, p in own]
        for part, gradient in zip(self.split, found, strict=True):
            part.grad = gradient

    def drop_gradients(self) -> None:
        """Parts hold none between steps."""
        for part in self.split:
            part.grad = None


def _memory_of(parameters: Sequence[DTensor]) -> list[int]:
    return [*map(_ADDRESS, map(_LOCAL, parameters))]


@dataclass(frozen=True)
class _Renamed:
    """States of parameters as those of their parts."""

    owners: list[Any]
    values: list[Any]
    states: defaultdict[Any, Any]

    @staticmethod
    def of(states: Mapping[Any, Any], names: Mapping[Any, Any]) -> _Renamed:
        """Those of parameters that have these names."""
        renamed: defaultdict[Any, Any] = defaultdict(dict)
        renamed.update((names.get(p, p), state) for p, state in states.items())
        return _Renamed([*states], [*states.values()], renamed)

    def is_of(self, states: Mapping[Any, Any]) -> bool:
        """Whether it still is."""
        return _are_same(self.owners, states) and _are_same(self.values, states.values())

    def is_unchanged(self) -> bool:
        """Whether a step has made no states, and put none in the place of others."""
        return _are_same(self.values, self.states.values())


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


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
