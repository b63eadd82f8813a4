"""Numbers that the graph of a rank takes as inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.watching import Numbers
from tensoropt_torch.program.places import after_inputs
from tensoropt_torch.program.records import Call, Input, Item, Record, Value
from tensoropt_torch.space.local_form import LocalForm

NUMBERS = "numbers"


def with_numbers(records: Sequence[Record], numbers: Numbers | None) -> list[Record]:
    """The records, which take the numbers as a tuple, if there are any: calls take what is in it in
    place of their marks."""
    if numbers is None or not numbers.marks:
        return list(records)
    whole, values = Value(), [Value() for _ in numbers.marks]
    items = [Item(value, whole, place) for place, value in enumerate(values)]
    begun = after_inputs(records, [Input(whole, NUMBERS), *items])
    return [_given(r, numbers, values) if isinstance(r, Call) else r for r in begun]


def _given(call: Call, numbers: Numbers, values: Sequence[Value]) -> Call:
    if not numbers.places_in((call.args, dict(call.kwargs))):
        return call

    def instead(leaf: Any) -> Any:
        places = [] if isinstance(leaf, Value) else numbers.places_in(leaf)
        return values[places[0]] if places else leaf

    args, kwargs = pytree.tree_map(instead, (call.args, dict(call.kwargs)))
    return replace(call, args=args, kwargs=kwargs)


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
