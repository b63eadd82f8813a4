"""Calls of ``torch.autograd.Function`` as operators.

An operator takes the tensors of the call, those inside of containers too; everything else is
part of its binding. What it runs is the user's own ``Function.apply`` on the actual tensors, so
that ``ctx`` and all that it offers are PyTorch's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import _SingleLevelFunction
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import NUMBER
from tensoropt_torch.frontend.python_calls.call_operators import (
    Tensors,
    bind,
    define,
    have_values,
    numbers_unseen,
)
from tensoropt_torch.frontend.python_calls.model_names import ModelNames
from tensoropt_torch.frontend.python_calls.standing import running_root
from tensoropt_torch.frontend.python_calls.surroundings import Surroundings
from tensoropt_torch.frontend.python_calls.texts import Describer, digest
from tensoropt_torch.frontend.python_calls.user_functions import held_later
from tensoropt_torch.frontend.python_calls.watching import Watch

# Functions of PyTorch that are no part of what the model computes, or are taken care of.
_INTERNAL = (
    "torch.utils.checkpoint",
    "torch.nn.modules._functions",
    "torch._higher_order_ops",
    "torch._dynamo",
    "torch._library",
    "torch._export",
    "torch.fx",
)
_TRANSFORMS = "torch._functorch"
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class _Slot:
    """Where a tensor is."""

    number: int


@dataclass(frozen=True)
class _Arguments:
    """Arguments of a call, with slots in the place of tensors."""

    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec

    @classmethod
    def of(cls, args: Sequence[Any]) -> tuple[_Arguments, Tensors]:
        """And the tensors."""
        flat, spec = pytree.tree_flatten(tuple(args))
        tensors: list[torch.Tensor] = []
        leaves = []
        for leaf in flat:
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
                leaf = _Slot(len(tensors) - 1)
            leaves.append(leaf)
        return cls(tuple(leaves), spec), tuple(tensors)

    def filled(self, tensors: Sequence[torch.Tensor], held: Mapping[int, Any] | None = None) -> Any:
        """With these tensors, and with what is ``held`` in the place of other leaves."""
        given = [*self.leaves]
        for number, value in (held or {}).items():
            given[number] = value
        leaves = [tensors[x.number] if isinstance(x, _Slot) else x for x in given]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class FunctionCall:
    """The binding of a call of ``Function.apply``."""

    function: Any
    arguments: _Arguments
    surroundings: Surroundings
    why_whole: str
    knows_backward: bool  # without values
    differentiable: tuple[bool, ...]  # which of the tensors require a gradient
    # By the number of an argument what the parallel module has in its place.
    standing: Mapping[int, Callable[[nn.Module], Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"the autograd.Function '{self.function.__qualname__}'"

    @property
    def user_class(self) -> Any:
        return self.function

    def run(self, tensors: Tensors) -> Tensors:
        if not self.knows_backward and not have_values(tensors):
            found: Tensors = _ShapesOnly.apply(self, *tensors)  # type: ignore[no-untyped-call]
            return found
        return self.forward(tensors)

    def forward(self, tensors: Tensors) -> Tensors:
        """With the user's backward behind it."""
        root = running_root()
        held = {} if root is None else {n: made(root) for n, made in self.standing.items()}
        with self.surroundings.again():
            result = apply_itself(self.function, self.arguments.filled(tensors, held))
        return tuple(x for x in _items(result) if isinstance(x, torch.Tensor))


class _ShapesOnly(torch.autograd.Function):
    """A call whose backward asks for values, where there are none."""

    @staticmethod
    def forward(ctx: Any, call: FunctionCall, *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors)
        return call.forward(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        needed = zip(ctx.needs_input_grad[1:], ctx.saved_tensors, strict=True)
        return None, *(torch.empty_like(t) if wanted else None for wanted, t in needed)


def apply_itself(function: Any, args: Sequence[Any], kwargs: Any = None) -> Any:
    """PyTorch's own ``apply``, whatever stands in its place."""
    return super(_SingleLevelFunction, function).apply(*args, **(kwargs or {}))


def is_left_alone(function: Any) -> bool:
    """Whether the function is one that PyTorch applies for its own purposes."""
    return str(function.__module__).startswith(_INTERNAL)


def recorded(function: Any, args: Sequence[Any], names: ModelNames) -> Any:
    """The results of ``function.apply(*args)`` during a capture, made by one operator. What
    it is given of the model, whose ``names`` these are, is that of the parallel module later.

    Raises:
        TensorOptError: the function does what an operator cannot do.
    """
    if str(function.__module__).startswith(_TRANSFORMS):
        raise TensorOptError(
            f"the autograd.Function '{function.__name__}' is called under torch.func (vmap, grad, "
            "...), where it cannot be captured: call it outside of the transform, or write it with "
            "torch.library.custom_op and register_vmap"
        )
    arguments, tensors = _Arguments.of(args)
    if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        return apply_itself(function, args)  # of constants
    return _Recording(function, arguments, tensors, names).call()


class _Recording:
    """One call during a capture."""

    def __init__(
        self, function: Any, arguments: _Arguments, tensors: Tensors, names: ModelNames
    ) -> None:
        self._names = names
        self._function = function
        self._arguments = arguments
        self._tensors = tensors
        self._surroundings = Surroundings.here()
        self._watch = Watch(())
        self._knows_backward = True
        self._differentiable = tuple(tensor.requires_grad for tensor in tensors)

    def call(self) -> Any:
        with (
            disable_proxy_modes_tracing(),
            torch._C.DisableTorchFunction(),
            numbers_unseen(self._tensors),
        ):
            result = self._tried()
        items = _items(result)
        outputs = [item for item in items if isinstance(item, torch.Tensor)]
        describer = Describer()
        text = self._text(describer, items, outputs)
        name = re.sub(r"\W", "_", str(self._function.__name__))
        operator = define(
            f"{name}_{digest(text)}", len(self._tensors), len(outputs), random=self._watch.random
        )
        number = bind(
            FunctionCall(
                self._function,
                self._arguments,
                self._surroundings,
                self._why_whole(describer),
                self._knows_backward,
                self._differentiable,
                self._standing(),
            ),
            (text, id(self._function), *map(id, describer.opaque)),
        )
        made = operator(*self._tensors, **{NUMBER: number})
        return self._with_made(result, made if len(outputs) > 1 else (made,))

    def _tried(self) -> Any:
        """What the call gives, of tensors without values; how, is watched."""
        leaves = tuple(t.detach().requires_grad_(t.requires_grad) for t in self._tensors)
        self._watch = watch = Watch(leaves)
        with watch.phase("forward"), self._surroundings.again():
            result = apply_itself(self._function, self._arguments.filled(leaves))
        self._check(self._check_outputs(result))
        if torch.is_grad_enabled():
            draws, watch.random = watch.random, False
            self._knows_backward = _differentiates(watch, leaves, _items(result))
            self._check("it draws random numbers in its backward" if watch.random else "")
            watch.random = draws
        self._check(watch.problem)
        return result

    def _check_outputs(self, result: Any) -> str:
        """What is wrong with them, if anything is."""
        items = _items(result)
        for item in items:
            if not isinstance(item, (torch.Tensor, *_PLAIN)):
                return (
                    f"it returns a {type(item).__name__} among its outputs; return tensors, or a "
                    "tuple of tensors, None and numbers"
                )
        if not any(isinstance(item, torch.Tensor) for item in items):
            return "it returns no tensor; return at least one"
        return ""

    def _check(self, problem: str) -> None:
        if problem:
            raise TensorOptError(
                f"the autograd.Function '{self._function.__qualname__}' cannot be an operator of "
                f"a plan: {problem}"
            )

    def _text(
        self, describer: Describer, items: Sequence[Any], outputs: Sequence[torch.Tensor]
    ) -> str:
        spec = str(self._arguments.spec)
        leaves = [repr(x) if isinstance(x, _Slot) else describer.text(x) for x in self._leaves]
        made = [type(i).__name__ if isinstance(i, torch.Tensor) else repr(i) for i in items]
        form = shape_form(self._tensors, outputs)
        function = describer.text(self._function)
        seen = self._differentiable, self._surroundings, self._watch.random
        return repr((function, spec, leaves, made, form, *seen))

    def _standing(self) -> dict[int, Callable[[nn.Module], Any]]:
        what = f"the autograd.Function '{self._function.__qualname__}'"
        found = {n: held_later(leaf, self._names, what) for n, leaf in enumerate(self._leaves)}
        return {number: made for number, made in found.items() if made is not None}

    @property
    def _leaves(self) -> tuple[Any, ...]:
        return self._arguments.leaves

    def _why_whole(self, describer: Describer) -> str:
        if describer.opaque:
            kind = type(describer.opaque[0]).__qualname__
            return f"it was given a {kind}, so nobody tries whether it works row by row"
        return "it draws random numbers" if self._watch.random else ""

    def _with_made(self, result: Any, made: Sequence[torch.Tensor]) -> Any:
        """What the function returned, with the outputs of the operator in it."""
        if isinstance(result, torch.Tensor):
            return made[0]
        tensors = iter(made)
        return tuple(next(tensors) if isinstance(x, torch.Tensor) else x for x in result)


def _differentiates(watch: Watch, leaves: Tensors, items: Sequence[Any]) -> bool:
    """Runs backward under the watch; whether it can do without values."""
    outputs = [x for x in items if isinstance(x, torch.Tensor) and x.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not outputs or not wanted:
        return True
    given = [torch.empty_like(output) for output in outputs]
    watch.know(given)
    try:
        with watch.phase("backward"):
            torch.autograd.grad(outputs, wanted, given, allow_unused=True)
    except Exception:  # whatever it raises without values: a run will show
        return False
    return True


def _items(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def shape_form(operands: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> str:
    """What of the shapes says which rules are possible: numbers of dims, which of the first
    dims are as long as that of the first tensor, and whether all have one shape."""
    tensors = [*operands, *outputs]
    shapes = [tuple(t.shape) for t in tensors if t.dim() > 0]
    rows = shapes[0][0] if shapes else 0
    marks = ["*" if t.dim() > 0 and t.shape[0] == rows else "" for t in tensors]
    dims = " ".join(f"{t.dim()}{mark}" for t, mark in zip(tensors, marks, strict=True))
    return f"{dims} {len(set(shapes)) <= 1}"
