"""What tells calls of a parallel module from each other: mode, shapes, literals, casts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.calls.attribute_watch import UNCHANGED, AttributeState, AttributeWatch
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.call_context import CallContext, current_autocast
from tensoropt_torch.frontend.capture import Arguments
from tensoropt_torch.units import dtype_name


@dataclass(frozen=True)
class TensorKind:
    """A tensor as this rank gets it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True)
class CallKind:
    """Calls of one kind run one graph.

    Attributes:
        modes: which modules are in training mode, in the order of ``modules()``.
        trained: which parameters require a gradient, in the order of ``parameters()``.
        spec: the containers of ``(args, kwargs)``, keywords in the order of their names.
        inputs: what is in them; of what is no tensor ``repr`` and type.
        context: what else the call depends on.
        gathered: whether ``inputs`` are those of all ranks, though the plan is for shares.
        attributes: what has changed since the module became parallel.
    """

    modes: tuple[bool, ...]
    trained: tuple[bool, ...]
    spec: pytree.TreeSpec
    inputs: tuple[TensorKind | tuple[str, str], ...]
    context: CallContext
    gathered: bool = False
    attributes: AttributeState = UNCHANGED

    @cached_property
    def digest(self) -> int:
        """A number below 2**62, equal on all ranks for equal kinds."""
        text = f"{self.modes}{self.trained}{self.spec}{self.inputs}{self.context}{self.attributes}"
        return _number(text)

    def digest_with(self, mark: str) -> int:
        """Another number for every mark."""
        return self.digest if not mark else _number(f"{self.digest}{mark}")

    @property
    def frozen(self) -> str:
        """How many parameters are, as an addition to ``describe``."""
        count = len(self.trained) - sum(self.trained)
        return f", {count} of {len(self.trained)} parameters frozen" if count else ""

    @property
    def shapes(self) -> tuple[TensorKind, ...]:
        """Of the tensors."""
        return tuple(item for item in self.inputs if isinstance(item, TensorKind))

    def without_rows(self, dims: Sequence[int | None]) -> CallKind:
        """What calls with other sizes of these dims of their inputs have in common."""
        inputs = tuple(
            replace(item, shape=(*item.shape[:dim], -1, *item.shape[dim + 1 :]))
            if isinstance(item, TensorKind) and dim is not None and dim < len(item.shape)
            else item
            for item, dim in zip(self.inputs, dims, strict=True)
        )
        return replace(self, inputs=inputs)

    def describe(self, names: Sequence[str] = ()) -> str:
        """In words, with the names of the inputs, by default their numbers."""
        count = sum(self.modes)
        mode = {0: "evaluation mode", len(self.modes): "training mode"}.get(
            count, f"{count} of {len(self.modes)} modules in training mode"
        )
        parts = [mode] if self.context.gradients else [mode, "no gradients"]
        parts += [f"autocast to {dtype_name(dtype)} on {on}" for on, dtype in self.context.autocast]
        if len(names) != len(self.inputs):
            names = [f"input {index}" for index in range(len(self.inputs))]
        parts += [
            f"{name}: {item if isinstance(item, TensorKind) else item[1]}"
            for name, item in zip(names, self.inputs, strict=True)
        ]
        return ", ".join([*parts, *filter(None, [str(self.attributes)])])


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


@dataclass(frozen=True)
class ModuleCall:
    """A call on this rank: its kind, and the values of its inputs."""

    kind: CallKind
    values: Sequence[Any]


class CallReader:
    """Reads the calls of a module whose modules and parameters are these, which was captured
    in this context."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        context: CallContext,
        attributes: AttributeWatch | None = None,
    ) -> None:
        self._attributes = attributes
        self._modules = modules
        self._parameters = parameters
        self._device = device
        self._context = context

    @property
    def waits_for_values(self) -> bool:
        """Whether reading a number of an input waits for the device."""
        return self._device.type != "cpu"

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModuleCall:
        """The call with these arguments, in the modes of now.

        Raises:
            TensorOptError: an input is on another device, or of a kind that is not known; an
                attribute has changed as it may not.
        """
        values, spec = flatten(args, kwargs)
        inputs = tuple(
            self._input(value, index, args, kwargs) for index, value in enumerate(values)
        )
        gradients = torch.is_grad_enabled()
        context = replace(self._context, gradients=gradients, autocast=current_autocast())
        modes = tuple(module.training for module in self._modules)
        trained = tuple(parameter.requires_grad for parameter in self._parameters)
        state = UNCHANGED if self._attributes is None else self._attributes.look()
        return ModuleCall(CallKind(modes, trained, spec, inputs, context, attributes=state), values)

    def _input(
        self, value: Any, index: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TensorKind | tuple[str, str]:
        if isinstance(value, torch.Tensor):
            if value.device != self._device or isinstance(value, DTensor):
                raise _refusal(value, path_of(index, args, kwargs), self._device)
            gradient = value.requires_grad and torch.is_grad_enabled()
            return TensorKind(tuple(value.shape), value.dtype, gradient)
        return literal_kind(value, lambda: path_of(index, args, kwargs))


def flatten(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The inputs of a call without their containers."""
    return pytree.tree_flatten(_arguments(args, kwargs))


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Keywords in the order of their names."""
    return tuple(args), dict(sorted(kwargs.items()))


def literal_kind(value: Any, where: Callable[[], str]) -> tuple[str, str]:
    """Type and text of an input that is no tensor, whose place ``where`` tells.

    Raises:
        TensorOptError: it has no text that says what it is.
    """
    known = (bool, int, float, complex, str, torch.dtype, torch.device)
    if value is None or isinstance(value, known):
        return type(value).__name__, repr(value)
    raise TensorOptError(
        f"input {where()} is a {type(value).__name__}, which a parallel module cannot take; give "
        "tensors, numbers, strings or None, in tuples, lists and dicts"
    )


def path_of(index: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Where an input is: ``args[0]``, ``tokens`` or ``batch['x']``."""
    leaves, _ = pytree.tree_flatten_with_path(_arguments(args, kwargs))
    (first, second, *rest), _ = leaves[index]
    if first == pytree.SequenceKey(0):
        return f"args{pytree.keystr((second, *rest))}"
    assert isinstance(second, pytree.MappingKey)
    return f"'{second.key}'{pytree.keystr(tuple(rest))}"


def _refusal(value: torch.Tensor, where: str, device: torch.device) -> TensorOptError:
    if isinstance(value, DTensor):
        return TensorOptError(
            f"input {where} is a DTensor; give this rank's tensor, such as x.to_local() or "
            "x.full_tensor()"
        )
    return TensorOptError(
        f"input {where} is on {value.device}, the module on {device}; move it there: "
        f"x.to('{device}')"
    )
