"""Calls of Python as operators of a graph.

::

    operator = define("Round_1a2b3c4d5e6f", num_operands=1, num_outputs=1)
    number = bind(binding)
    y = operator(x, python_call=number)      # binding.run((x,))

An operator's name says what is called, alike in all processes; what is called is a binding,
an object of this process, which the call names by a number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from tensoropt_torch.frontend.passes.nodes import NUMBER, PYTHON

Tensors = tuple[torch.Tensor, ...]


class Binding(Protocol):
    """What a call of Python does."""

    @property
    def title(self) -> str:
        """What it is, for people."""

    @property
    def why_whole(self) -> str:
        """Why nobody tries whether it works row by row; empty: it may be tried."""

    @property
    def user_class(self) -> Any:
        """What a rule for it is registered for, if there is one."""

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which of its tensors require a gradient."""

    def run(self, tensors: Tensors) -> Tensors:
        """With the operands of the call; gradients flow as they do for the user's own call."""


class _Table:
    """The operators and bindings of this process."""

    def __init__(self) -> None:
        self.library: Any = torch.library.Library(PYTHON, "FRAGMENT")  # type: ignore[no-untyped-call]
        self.operators: dict[str, OpOverload] = {}
        self.bindings: list[Binding] = []
        self.numbers: dict[Hashable, int] = {}


_TABLE = _Table()
_KEYS = ("Autograd", "CompositeExplicitAutograd")  # the second where there is no autograd


def define(
    name: str,
    num_operands: int,
    num_outputs: int,
    *,
    random: bool = False,
    acts: bool = False,
) -> OpOverload:
    """The operator of this name, made when it is first asked for.

    Args:
        random: it draws numbers.
        acts: it is run even if nobody uses what it gives.
    """
    if name not in _TABLE.operators:
        operands = "".join(f"Tensor x{i}, " for i in range(num_operands))
        returns = "Tensor" if num_outputs == 1 else f"({', '.join(['Tensor'] * num_outputs)})"
        tags = (torch.Tag.nondeterministic_seeded,) if random else ()
        _TABLE.library.define(f"{name}({operands}*, int {NUMBER}) -> {returns}", tags=tags)
        for key in _KEYS:
            _TABLE.library.impl(name, _run, key)
        _TABLE.operators[name] = getattr(getattr(torch.ops, PYTHON), name).default
        if acts:
            fx.node.has_side_effect(_TABLE.operators[name])
    return _TABLE.operators[name]


def define_mark(name: str) -> OpOverload:
    """An operator that does nothing, and is in the graph where it was called."""
    if name not in _TABLE.operators:
        _TABLE.library.define(f"{name}(Tensor(a!) x0, *, int {NUMBER}) -> ()")
        for key in _KEYS:
            _TABLE.library.impl(name, _nothing, key)
        _TABLE.operators[name] = getattr(getattr(torch.ops, PYTHON), name).default
    return _TABLE.operators[name]


def bind(binding: Binding, key: Hashable) -> int:
    """Its number; that of an earlier one with an equal key, which does the same."""
    if key not in _TABLE.numbers:
        _TABLE.numbers[key] = len(_TABLE.bindings)
        _TABLE.bindings.append(binding)
    return _TABLE.numbers[key]


def binding_of(number: int) -> Binding:
    """What a call with this number runs."""
    return _TABLE.bindings[number]


def binding_of_node(node: fx.Node) -> Binding:
    """What a node of a graph runs."""
    number = node.kwargs[NUMBER]
    assert isinstance(number, int)
    return binding_of(number)


def _run(*tensors: torch.Tensor, python_call: int) -> Any:
    # What the call does to the modes of PyTorch is its own affair, and no part of a graph.
    with torch._C.DisableTorchFunction(), numbers_unseen(tensors):
        outputs = binding_of(python_call).run(tensors)
    return outputs[0] if len(outputs) == 1 else outputs


@contextmanager
def numbers_unseen(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A capture does not miss the numbers that a call takes out of tensors (``item``)."""
    fakes = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
    environment = fakes[0].fake_mode.shape_env if fakes else None
    if environment is None:
        yield
        return
    with environment.ignore_fresh_unbacked_symbols():
        yield


def _nothing(x: torch.Tensor, *, python_call: int) -> None:
    pass


def have_values(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether it is a run, no capture or simulation."""
    return not any(isinstance(t, FakeTensor) or t.is_meta for t in tensors)
