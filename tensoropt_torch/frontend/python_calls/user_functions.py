"""Functions of the user that are called in later steps, such as hooks.

Modules of the model that they hold, as ``self`` or in a closure, are the stand-ins of the parallel
module then. Tensors of forward that a closure holds are without values while a model is captured;
in a run they are those of the step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tensoropt_torch.errors import TensorOptError


class UserFunction:
    """A function, and what it holds of the model and of one forward.

    Args:
        function: of the user.
        paths: of the modules of the model, by their ids.
        what: it is, for messages.

    Raises:
        TensorOptError: it holds a tensor of forward where that cannot be replaced.
    """

    def __init__(self, function: Any, paths: Mapping[int, str], what: str) -> None:
        self.tensors: list[torch.Tensor] = []
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self._function = function
        self._paths = paths
        self._what = what
        self._make = self._maker(function)

    def made(self, root: nn.Module, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """The function as it is called in a step of the parallel module with these stand-ins,
        whose forward has these tensors."""
        made: Callable[..., Any] = self._make(root, tensors)
        return made

    def _maker(self, value: Any) -> Callable[[nn.Module, Sequence[torch.Tensor]], Any]:
        if isinstance(value, FakeTensor):
            self.tensors.append(value)
            number = len(self.tensors) - 1
            return lambda root, tensors: tensors[number]
        if isinstance(value, nn.Module) and id(value) in self._paths:
            path = self._paths[id(value)]
            return lambda root, tensors: root.get_submodule(path)
        if isinstance(value, MethodType):
            return self._maker_of_method(value)
        if isinstance(value, functools.partial):
            return self._maker_of_partial(value)
        if isinstance(value, FunctionType):
            return self._maker_of_function(value)
        self._check(value)
        return lambda root, tensors: value

    def _maker_of_method(self, value: MethodType) -> Callable[..., Any]:
        owner, function = self._maker(value.__self__), self._maker(value.__func__)
        return lambda *given: MethodType(function(*given), owner(*given))

    def _maker_of_partial(self, value: functools.partial[Any]) -> Callable[..., Any]:
        function = self._maker(value.func)
        args = [self._maker(arg) for arg in value.args]
        keywords = {name: self._maker(arg) for name, arg in value.keywords.items()}
        return lambda *given: functools.partial(
            function(*given),
            *(make(*given) for make in args),
            **{name: make(*given) for name, make in keywords.items()},
        )

    def _maker_of_function(self, value: FunctionType) -> Callable[..., Any]:
        cells = value.__closure__ or ()
        makers = {i: self._maker(c) for i, c in enumerate(map(_content, cells)) if self._changes(c)}
        for cell in cells:
            if not self._changes(_content(cell)):
                self._check(_content(cell))
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        for default in defaults:
            self._check(default)
        if not makers:
            return lambda root, tensors: value

        def make(root: nn.Module, tensors: Sequence[torch.Tensor]) -> FunctionType:
            # Cells that hold something else are shared, for who counts in them.
            own = tuple(
                CellType(makers[i](root, tensors)) if i in makers else cell
                for i, cell in enumerate(cells)
            )
            made = FunctionType(
                value.__code__, value.__globals__, value.__name__, value.__defaults__, own
            )
            made.__kwdefaults__ = value.__kwdefaults__
            return made

        return make

    def _changes(self, value: Any) -> bool:
        """Whether a run has something else in its place."""
        if isinstance(value, nn.Module):
            return id(value) in self._paths
        if isinstance(value, MethodType):
            return self._changes(value.__self__) or self._changes(value.__func__)
        if isinstance(value, functools.partial):
            return any(map(self._changes, (value.func, *value.args, *value.keywords.values())))
        if isinstance(value, FunctionType):
            return any(self._changes(_content(cell)) for cell in value.__closure__ or ())
        return isinstance(value, FakeTensor)

    def _check(self, value: Any) -> None:
        """Raises TensorOptError if a container or an object holds a tensor of forward."""
        inside = list(vars(value).values()) if hasattr(value, "__dict__") else []
        if isinstance(value, (tuple, list, set)):
            inside += list(value)
        elif isinstance(value, Mapping):
            inside += list(value.values())
        if isinstance(value, nn.Module) or not any(isinstance(x, FakeTensor) for x in inside):
            return
        raise TensorOptError(
            f"{self._what} ('{self.name}') holds a tensor that forward has computed, inside of a "
            f"{type(value).__qualname__}, where it cannot be followed; use the tensor itself as a "
            "variable of the function that the hook is defined in"
        )


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None
