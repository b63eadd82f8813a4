"""Rules of calls of Python: those that trials find, and those that users register for an
``autograd.Function``, whose every kind of call is an operator of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import capture
from tensoropt_torch.frontend.python_calls import (
    Proof,
    binding_of_node,
    forget,
    is_python_call,
)
from tensoropt_torch.rules.trial import tried

Declare = Callable[[OpOverload], None]


@dataclass
class _Registered:
    """The rule of a Function, and the operators that have it."""

    rule: str
    declare: Declare
    operators: set[OpOverload] = field(default_factory=set)


class _Registry:
    """In this process."""

    def __init__(self) -> None:
        self.rules: dict[Any, _Registered] = {}
        self.operators: dict[Any, set[OpOverload]] = {}  # that were met, by Function


_REGISTRY = _Registry()


def is_function(operator: Any) -> bool:
    """Whether it is an ``autograd.Function``."""
    return isinstance(operator, type) and issubclass(operator, torch.autograd.Function)


def register(function: Any, rule: str, declare: Declare) -> None:
    """``declare`` makes the rule that of an operator."""
    unregister(function, must_exist=False)
    _REGISTRY.rules[function] = _Registered(rule, declare)
    for operator in _REGISTRY.operators.get(function, set()):
        forget(str(operator))


def unregister(function: Any, *, must_exist: bool = True) -> None:
    """Forget the rule of a Function."""
    found = _REGISTRY.rules.pop(function, None)
    if found is None and must_exist:
        raise TensorOptError(f"no rule was registered for {function.__qualname__}")
    for operator in _REGISTRY.operators.get(function, set()):
        forget(str(operator))
        if str(operator) in _C.current_rules().targets():
            _C.withdraw_rule(str(operator))


def prover(declare: Callable[[OpOverload, str, Sequence[int]], None]) -> Callable[[fx.Node], Proof]:
    """What finds out how a call can be split; ``declare`` makes a rule known, with the tensors
    that are thought to be kept."""

    def prove(node: fx.Node) -> Proof:
        function = binding_of_node(node).user_class
        operator = node.target
        assert isinstance(operator, OpOverload)
        if function is not None:
            _REGISTRY.operators.setdefault(function, set()).add(operator)
        registered = _REGISTRY.rules.get(function)
        if registered is not None:
            registered.declare(operator)
            return Proof(registered.rule, "registered", linear=False)
        found = tried(node)
        if found.rule:
            wanted = binding_of_node(node).differentiable
            kept = [i for i, requires_grad in enumerate(wanted) if requires_grad]
            declare(operator, found.rule, kept)
        return found

    return prove


def operator_call(
    function: Any, args: Sequence[Any]
) -> tuple[OpOverload, list[torch.Tensor], dict[str, Any]]:
    """``function.apply(*args)`` as the call of an operator: with its tensors and keywords."""
    leaves = [arg for arg in args if isinstance(arg, torch.Tensor)]

    class Call(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            rest = iter(tensors)
            result = function.apply(
                *(next(rest) if isinstance(a, torch.Tensor) else a for a in args)
            )
            made = result if isinstance(result, tuple) else (result,)
            return tuple(item for item in made if isinstance(item, torch.Tensor))

    graph = capture(Call(), tuple(leaves)).graph_module.graph
    (node,) = (node for node in graph.nodes if is_python_call(node))
    assert isinstance(node.target, OpOverload)
    return node.target, leaves, dict(node.kwargs)
