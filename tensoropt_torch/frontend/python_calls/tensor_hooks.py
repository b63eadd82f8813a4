"""Hooks that forward sets on tensors, as operators.

Where a hook is set there is a mark in the graph. ``place_hooks`` makes of it a call that gives
its operand, right behind what made the tensor, so that the gradients of all of its uses go
through the hook. Tensors of forward that the hook uses are handed to it by a call at the mark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import BUFFER, NUMBER, source_line
from tensoropt_torch.frontend.passes.regions import inline_regions
from tensoropt_torch.frontend.python_calls.call_operators import (
    Tensors,
    bind,
    binding_of_node,
    define,
    define_mark,
    have_values,
)
from tensoropt_torch.frontend.python_calls.model_names import ModelNames
from tensoropt_torch.frontend.python_calls.standing import running_root
from tensoropt_torch.frontend.python_calls.texts import Describer, digest
from tensoropt_torch.frontend.python_calls.user_functions import UserFunction

WHY_WHOLE = "hooks get whole gradients"
_MARK = "tensor_hook_is_set"


class TensorHook:
    """The binding of a hook of a tensor: gives its operand, whose gradient goes through it."""

    user_class = None
    why_whole = WHY_WHOLE
    differentiable = (True,)

    def __init__(self, function: UserFunction, operator: OpOverload) -> None:
        self.function = function
        self.operator = operator
        self._current: list[torch.Tensor] = []  # what the hook uses, of the newest forward

    @property
    def title(self) -> str:
        return f"the hook '{self.function.name}' of a tensor"

    def run(self, tensors: Tensors) -> Tensors:
        (x,) = tensors
        y = x.view_as(x)
        root = running_root()
        if y.requires_grad and root is not None and have_values(tensors):
            held: list[torch.Tensor] = []
            self._current = held
            function = self.function

            def hook(gradient: torch.Tensor) -> Any:
                return function.made(root, held)(gradient)

            y.register_hook(hook)  # type: ignore[no-untyped-call]
        return (y,)

    def hold(self, tensors: Tensors) -> None:
        """These are the tensors that it uses."""
        self._current[:] = [tensor.detach() for tensor in tensors]


class HeldTensors:
    """The binding of a call that hands tensors to a hook."""

    user_class = None
    why_whole = WHY_WHOLE
    differentiable = ()

    def __init__(self, hook: TensorHook) -> None:
        self._hook = hook

    @property
    def title(self) -> str:
        return f"what {self._hook.title} uses"

    def run(self, tensors: Tensors) -> Tensors:
        self._hook.hold(tensors)
        return (tensors[0].detach().view_as(tensors[0]),)


class UnremovableHandle:
    """In the place of a handle of a hook that is part of the graph."""

    def remove(self) -> NoReturn:
        """Raises TensorOptError."""
        raise TensorOptError(
            "a hook that the forward pass of a captured model sets is part of its graph and cannot "
            "be removed; set it only where it is wanted, as under a flag of the model"
        )

    def __enter__(self) -> NoReturn:
        self.remove()

    def __exit__(self, *error: Any) -> None:
        pass


def set_hook(tensor: torch.Tensor, hook: Callable[..., Any], names: ModelNames) -> Any:
    """``tensor.register_hook(hook)`` during a capture.

    Raises:
        TensorOptError: the hook belongs to several tensors.
    """
    if getattr(hook, "__globals__", {}).get("__name__") == "torch.autograd.graph":
        raise TensorOptError(
            "register_multi_grad_hook in forward cannot be captured: set a hook on each tensor "
            "(tensor.register_hook), or pass the tensors through one autograd.Function"
        )
    function = UserFunction(hook, names, "a hook of a tensor")
    text = digest(Describer().text(hook))
    binding = TensorHook(function, define(f"tensor_hook_{text}", 1, 1))
    number = bind(binding, object())
    define_mark(_MARK)(tensor, **{NUMBER: number})
    if function.tensors:
        holds = define(f"tensor_hook_uses_{text}", len(function.tensors), 1, acts=True)
        holds(*function.tensors, **{NUMBER: bind(HeldTensors(binding), object())})
    return UnremovableHandle()


def place_hooks(graph: fx.Graph) -> None:
    """Put the calls of hooks in the place of their marks."""
    inline_regions(graph)
    first: dict[fx.Node, fx.Node] = {}  # behind a tensor; hooks that were set later come first
    originals: dict[fx.Node, fx.Node] = {}
    marks = [n for n in graph.nodes if n.op == "call_function" and _is_mark(n)]
    for mark in marks:
        (operand,) = mark.args
        assert isinstance(operand, fx.Node)
        producer = originals.get(operand, operand)
        _check_producer(mark, producer)
        binding = binding_of_node(mark)
        assert isinstance(binding, TensorHook)
        with graph.inserting_after(_place_behind(graph, producer)):
            call = graph.call_function(binding.operator, (producer,), dict(mark.kwargs))
        call.meta = dict(producer.meta)
        call.meta["stack_trace"] = mark.meta.get("stack_trace")
        call.meta.pop(BUFFER, None)
        if producer in first:
            first[producer].replace_input_with(producer, call)
        else:
            producer.replace_all_uses_with(call)
            call.args = (producer,)
            originals[call] = producer
        first[producer] = call
        graph.erase_node(mark)


def _is_mark(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.name.endswith(_MARK)


def _place_behind(graph: fx.Graph, producer: fx.Node) -> fx.Node:
    if producer.op != "placeholder":
        return producer
    last: fx.Node = graph.find_nodes(op="placeholder")[-1]
    return last


def _check_producer(mark: fx.Node, producer: fx.Node) -> None:
    if producer.op == "placeholder" and BUFFER in producer.meta:
        raise TensorOptError(
            f"forward sets a hook on '{producer.name}', a parameter or buffer, which would have "
            "one more after every call: set it once, before the module becomes parallel"
            f"{source_line(mark)}"
        )
