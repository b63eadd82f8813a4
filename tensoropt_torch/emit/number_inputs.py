"""Numbers that the graph of a rank takes as inputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.local_calls import Invocation
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.watching import Numbers
from tensoropt_torch.plan.local_form import LocalForm

NUMBERS = "numbers"


class NumberInputs:
    """The placeholder of the numbers, a tuple, if there are any; in place of their marks calls
    take what is in it."""

    def __init__(self, graph: fx.Graph, numbers: Numbers | None) -> None:
        self._numbers = numbers
        self._nodes: list[fx.Node] = []
        if numbers is not None and numbers.marks:
            given = graph.placeholder(NUMBERS)
            self._nodes = [
                graph.call_function(operator.getitem, (given, place))
                for place in range(len(numbers.marks))
            ]

    def of(self, call: Invocation) -> Invocation:
        """The call with the numbers."""
        numbers = self._numbers
        if numbers is None or not numbers.places_in((call.args, dict(call.kwargs))):
            return call

        def given(value: Any) -> Any:
            places = numbers.places_in(value)
            return self._nodes[places[0]] if places else value

        args, kwargs = pytree.tree_map(given, (call.args, dict(call.kwargs)), is_leaf=_is_node)
        return replace(call, args=args, kwargs=kwargs)


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def takes_numbers(captured: CapturedModel, forms: Sequence[tuple[fx.Node, LocalForm]]) -> bool:
    """Whether the calls of a rank have the numbers where the whole ones have them: not in those
    that another operator stands for."""
    numbers = captured.numbers
    if numbers is None or not numbers.marks:
        return True
    for node, form in forms:
        if numbers.places_in((node.args, dict(node.kwargs))):
            replaced = numbers.places_in(tuple(form.arguments.values()))
            if form.target or form.extra or replaced:
                return False
    return True
