"""Functions of the user that are called in later steps, such as hooks.

What they hold of the model, as ``self``, in a closure or as a default, is that of the parallel
module then: stand-ins of modules, whole parameters. Tensors of forward that they hold are without
values while a model is captured; in a run they are those of the step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.python_calls.model_names import ModelNames
from tensoropt_torch.frontend.watching.leaks import is_in_graph

Maker = Callable[[nn.Module, Sequence[torch.Tensor]], Any]
_HOLDING = (MethodType, FunctionType, functools.partial)


class UserFunction:
    """A function, and what it holds of the model and of one forward.

    Args:
        function: of the user.
        names: of the model.
        what: it is, for messages.

    Attributes:
        changes: whether it holds something that a run has in another place.
        tensors: of forward, that it holds.

    Raises:
        TensorOptError: it holds something where that cannot be replaced.
    """

    def __init__(
        self,
        function: Any,
        names: ModelNames,
        what: str,
        *,
        of_forward: bool = True,
        tensor: Callable[[nn.Module, str], torch.Tensor] | None = None,
    ) -> None:
        """Unless it is ``of_forward`` it may hold anything besides; ``tensor`` gives parameters
        and buffers, by default their whole values."""
        self._of_forward = of_forward
        self._tensor = tensor or _whole
        self.tensors: list[torch.Tensor] = []
        self.name = str(getattr(function, "__qualname__", type(function).__qualname__))
        self._names = names
        self._what = what
        self.changes = self._changes(function)
        self._make = self._maker(function)

    def made(self, root: nn.Module, tensors: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """The function as it is called in a step of the parallel module with these stand-ins,
        whose forward has these tensors. Collective if it holds a parameter."""
        made: Callable[..., Any] = self._make(root, tensors)
        return made

    def _maker(self, value: Any) -> Maker:
        if isinstance(value, MethodType):
            owner, function = self._maker(value.__self__), self._maker(value.__func__)
            return lambda *given: MethodType(function(*given), owner(*given))
        if isinstance(value, functools.partial):
            return self._maker_of_partial(value)
        if isinstance(value, FunctionType):
            return self._maker_of_function(value)
        return self._maker_of_value(value)

    def _maker_of_value(self, value: Any) -> Maker:
        if isinstance(value, nn.Module):
            path = self._names.module(value)
            return lambda root, _: value if path is None else root.get_submodule(path)
        if isinstance(value, torch.Tensor):
            name = self._names.tensor(value)
            if name is not None:
                known = name
                return lambda root, _: self._tensor(root, known)
            if isinstance(value, FakeTensor):
                self.tensors.append(value)
                number = len(self.tensors) - 1
                return lambda _, tensors: tensors[number]
        self._check(value)
        return lambda root, tensors: value

    def _maker_of_partial(self, value: functools.partial[Any]) -> Maker:
        function = self._maker(value.func)
        args = [self._maker(arg) for arg in value.args]
        keywords = {name: self._maker(arg) for name, arg in value.keywords.items()}
        return lambda *given: functools.partial(
            function(*given),
            *(make(*given) for make in args),
            **{name: make(*given) for name, make in keywords.items()},
        )

    def _maker_of_function(self, value: FunctionType) -> Maker:
        if self._of_forward:
            is_in_graph(value)
        self._check_globals(value)
        if not self._changes(value):
            for held in _held(value):
                self._check(held)
            return lambda root, tensors: value
        # Cells that hold something else are shared, for who counts in them.
        cells = [
            self._maker_of_cell(cell) if self._changes(_content(cell)) else _constant(cell)
            for cell in value.__closure__ or ()
        ]
        defaults = [self._maker(default) for default in value.__defaults__ or ()]
        keywords = {name: self._maker(d) for name, d in (value.__kwdefaults__ or {}).items()}

        def make(root: nn.Module, tensors: Sequence[torch.Tensor]) -> FunctionType:
            made = FunctionType(
                value.__code__,
                value.__globals__,
                value.__name__,
                tuple(make(root, tensors) for make in defaults) or None,
                tuple(make(root, tensors) for make in cells) or None,
            )
            made.__kwdefaults__ = {n: make(root, tensors) for n, make in keywords.items()} or None
            return made

        return make

    def _maker_of_cell(self, cell: CellType) -> Maker:
        make = self._maker(_content(cell))
        return lambda root, tensors: CellType(make(root, tensors))

    def _changes(self, value: Any) -> bool:
        """Whether a run has something else in its place."""
        if isinstance(value, MethodType):
            return self._changes(value.__self__) or self._changes(value.__func__)
        if isinstance(value, functools.partial):
            return any(map(self._changes, (value.func, *value.args, *value.keywords.values())))
        if isinstance(value, FunctionType):
            return any(map(self._changes, _held(value)))
        return isinstance(value, FakeTensor) or self._names.knows(value)

    def _check(self, value: Any) -> None:
        """Raises TensorOptError if a container or an object holds a tensor of forward, or a
        container one of the model."""
        if not self._of_forward:
            return
        inside: list[Any] = []
        if isinstance(value, (tuple, list, set)):
            inside = list(value)
        elif isinstance(value, Mapping):
            inside = [*value.keys(), *value.values()]
        of_model = any(map(self._names.knows, inside))
        inside += list(vars(value).values()) if hasattr(value, "__dict__") else []
        if of_model or any(isinstance(x, FakeTensor) for x in inside):
            whose = "the model has" if of_model else "forward has computed"
            raise TensorOptError(
                f"{self._what} ('{self.name}') holds a tensor or module that {whose}, inside of a "
                f"{type(value).__qualname__}, where it cannot be replaced by that of the parallel "
                "module; let it hold that itself, as a variable of its own"
            )

    def _check_globals(self, function: FunctionType) -> None:
        if not self._of_forward:
            return
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if self._names.knows(value) or isinstance(value, FakeTensor):
                raise TensorOptError(
                    f"{self._what} ('{self.name}') uses the global '{name}', which is the model or "
                    "a part of it: the parallel module has others; hand it to the function, as in "
                    f"'lambda g, {name}={name}: ...'"
                )


def held_later(value: Any, names: ModelNames, what: str) -> Callable[[nn.Module], Any] | None:
    """What gives, for the stand-ins of a parallel module, what that has in the place of a value
    that is of the model or holds something of it; None: it is the same."""
    place = names.attribute(value)
    if place is not None:
        path, name = place
        return lambda root: vars(root.get_submodule(path)).get(name, value)
    if not isinstance(value, (nn.Module, *_HOLDING)):
        return None
    held = UserFunction(value, names, what, of_forward=False)
    return (lambda root: held.made(root, ())) if held.changes else None


def rebound(value: Any, names: ModelNames, root: nn.Module, what: str) -> Any:
    """A function that holds what ``root`` has in place of the modules, parameters and buffers
    of the model of which it is a copy."""
    if not isinstance(value, _HOLDING):
        return value
    held = UserFunction(value, names, what, of_forward=False, tensor=_own)
    return held.made(root, ()) if held.changes else value


def _held(function: FunctionType) -> Iterable[Any]:
    yield from map(_content, function.__closure__ or ())
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _own(root: nn.Module, name: str) -> torch.Tensor:
    """A parameter or buffer of a module."""
    path, _, leaf = name.rpartition(".")
    tensor: torch.Tensor = getattr(root.get_submodule(path), leaf)
    return tensor


def _constant(value: Any) -> Maker:
    return lambda root, tensors: value


def _whole(root: nn.Module, name: str) -> torch.Tensor:
    """The value of a parameter or buffer of the parallel module. Collective."""
    path, _, leaf = name.rpartition(".")
    tensor: torch.Tensor = getattr(root.get_submodule(path), leaf).detach()
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()
