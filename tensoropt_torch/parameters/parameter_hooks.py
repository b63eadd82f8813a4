"""Hooks of a model's parameters, set before it becomes parallel.

They were written for whole tensors. So each gets the whole gradient, and what it gives is cut to
the layout of the parameter; a hook that runs when a gradient has been added up gets a whole
parameter with a whole ``.grad`` in the place of its own. All ranks call them alike. Those that are
removed from the model's parameter later are not called any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.python_calls import ModelNames, UserFunction, are_hooks_silent
from tensoropt_torch.parameters.local_parts import as_whole
from tensoropt_torch.values.parts import take_part


def carry_hooks_over(
    model: nn.Module, root: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> None:
    """The hooks of the model's parameters become those of ``parameters``, by their names, which
    the stand-in ``root`` of the model has.

    Raises:
        TensorOptError: a hook cannot run on a parallel module, or a buffer has one.
    """
    if are_hooks_silent():
        return
    _check_buffers(model.named_buffers())
    names = ModelNames.of(model)
    for name, original in model.named_parameters():
        if original._backward_hooks or original._post_accumulate_grad_hooks:
            _Hooks(name, original, parameters[name], names, root).carry_over()


def _check_buffers(buffers: Iterable[tuple[str, torch.Tensor]]) -> None:
    for name, buffer in buffers:
        if buffer._backward_hooks:
            raise TensorOptError(
                f"buffer '{name}' has a hook (register_hook): buffers of a parallel module have no "
                "gradients; make it a parameter"
            )


class _Hooks:
    """Of one parameter. Dicts of hooks are the model's own, so that removed ones are gone."""

    def __init__(
        self,
        name: str,
        original: torch.Tensor,
        parameter: nn.Parameter,
        names: ModelNames,
        root: nn.Module,
    ) -> None:
        self._name = name
        self._parameter = parameter
        self._root = root
        self._names = names
        self._of_gradient: dict[int, Any] = original._backward_hooks or {}
        self._of_sum: dict[int, Any] = original._post_accumulate_grad_hooks or {}
        # Says now what cannot be carried over.
        for function in (*self._of_gradient.values(), *self._of_sum.values()):
            self._user_function(function)

    def carry_over(self) -> None:
        """Sets one hook of each kind that there is."""
        trained = self._parameter.requires_grad
        self._parameter.requires_grad_()  # frozen ones may be thawed
        if self._of_gradient:
            self._parameter.register_hook(self._with_gradient)  # type: ignore[no-untyped-call]
        if self._of_sum:
            after: Any = self._parameter.register_post_accumulate_grad_hook
            after(self._with_sum)
        self._parameter.requires_grad_(trained)

    def _user_function(self, function: Any) -> UserFunction:
        return UserFunction(function, self._names, f"a hook of parameter '{self._name}'")

    def _functions(self, hooks: Mapping[int, Any]) -> list[Callable[..., Any]]:
        functions = [self._user_function(hook) for hook in tuple(hooks.values())]
        return [function.made(self._root, ()) for function in functions]

    def _with_gradient(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Runs the hooks of gradients, in their order."""
        if not self._of_gradient:
            return None
        whole = _whole(gradient)
        before, version = whole, whole._version
        for function in self._functions(self._of_gradient):
            result = function(whole)
            whole = whole if result is None else self._checked(result, whole)
        if whole is before and whole._version == version:
            return None
        return self._cut(whole)

    def _checked(self, result: Any, given: torch.Tensor) -> torch.Tensor:
        if not isinstance(result, torch.Tensor) or result.shape != given.shape:
            got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise TensorOptError(
                f"a hook of parameter '{self._name}' returned {got} for a gradient of shape "
                f"{tuple(given.shape)}; return None or a gradient of that shape"
            )
        return result

    def _with_sum(self, parameter: torch.Tensor) -> None:
        """Runs the hooks of a gradient that has been added up, with a whole parameter."""
        if not self._of_sum:
            return
        value = _whole(parameter.detach())
        stand_in = nn.Parameter(value.clone())
        stand_in.grad = None if parameter.grad is None else _whole(parameter.grad).clone()
        version = stand_in._version
        for function in self._functions(self._of_sum):
            if function(stand_in) is not None:
                raise TensorOptError(
                    f"a post-accumulate-grad hook of parameter '{self._name}' returned something; "
                    "it has to return None"
                )
        with torch.no_grad():
            if stand_in._version != version or not torch.equal(stand_in, value):
                parameter.copy_(self._cut(stand_in.detach()))
            grad = stand_in.grad
            parameter.grad = None if grad is None else self._cut(self._checked(grad, stand_in))

    def _cut(self, whole: torch.Tensor) -> torch.Tensor:
        """The rank's part, as the parameter's layout has it."""
        parameter = self._parameter
        if not isinstance(parameter, DTensor):
            return whole
        part = take_part(whole.detach(), parameter.device_mesh, parameter.placements)
        return as_whole(part.contiguous().clone(), parameter)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
