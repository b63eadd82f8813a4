"""Top-k routed experts as one call.

Hugging Face's experts sort all choices of all tokens by expert, which no part of the
tokens can do for itself. As ``tensoropt::routed_experts`` they are split by tokens and
by experts (csrc/rules/routed_experts.cc).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch.frontend.passes.nodes import add_call, argument, target_name, value_of
from tensoropt_torch.operators import OPS

aten = torch.ops.aten

# Operators that multiply groups of rows with a matrix each, as the schema names them.
_PRODUCTS = {
    "aten._grouped_mm.default": "aten::_grouped_mm",
    "transformers.grouped_mm_fallback.default": "transformers::grouped_mm_fallback",
}
_ACTIVATIONS = {"aten.silu.default": "silu", "aten.relu.default": "relu"}
_GELU = {"none": "gelu", "tanh": "gelu_tanh"}
_CAST = "aten.to.dtype"


class _DiffersError(Exception):
    """A call is not what it would have to be."""


@dataclass(frozen=True)
class _Product:
    """``rows`` sorted by group, which end at ``ends``, times a matrix each."""

    name: str
    rows: fx.Node
    matrices: fx.Node
    ends: fx.Node


@dataclass(frozen=True)
class _Choices:
    """All choices of all tokens, flat: which expert; ``order`` sorts them by expert."""

    experts: fx.Node
    sorted: fx.Node
    order: fx.Node

    @property
    def count(self) -> int:
        return value_of(self.experts).numel()


def join_routed_experts(graph: fx.Graph) -> None:
    """Replace experts that are chosen by token, two grouped products with an activation
    between them, by one call. What is written in another way stays as it is."""
    for node in list(graph.nodes):
        if target_name(node) != "aten.sum.dim_IntList":
            continue
        try:
            args = _experts(node)
        except _DiffersError:
            continue
        with graph.inserting_before(node):
            x, chosen, weights, *rest = args
            by_token = [_by_token(graph, flat, node) for flat in (chosen, weights)]
            call = OPS.routed_experts.default
            new = add_call(graph, call, (x, *by_token, *rest), node)
        node.replace_all_uses_with(new)


def _by_token(graph: fx.Graph, flat: fx.Node, total: fx.Node) -> fx.Node:
    """``[tokens, choices]`` of what ``flat`` has for all choices, summed up in ``total``."""
    shape = list(value_of(total.args[0]).shape[:2])
    if target_name(flat) == "aten.reshape.default":
        source = flat.args[0]
        assert isinstance(source, fx.Node)
        if list(value_of(source).shape) == shape:
            return source
    return add_call(graph, aten.reshape.default, (flat, shape), flat)


def _experts(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of the call whose result ``node`` is, choices and weights flat."""
    by_token = _call(node.args[0], "aten.reshape.default")
    _check(value_of(by_token).dim() == 3)
    _check(argument(node, "dim") == [1] and not argument(node, "keepdim"))
    _check(argument(node, "dtype") is None)
    weighted, inverse = _gather(by_token.args[0])
    _check(target_name(weighted) == "aten.mul.Tensor")
    results, column = weighted.args
    weights, order = _gather(_unsqueezed(column))
    choices = _sorted(order)
    _check_inverse(inverse, choices)
    down = _product(results)
    activation, gated, first = _gate(_uncast(down.rows))
    up = _product(first)
    _check(up.name == down.name and up.ends is down.ends)
    _check_ends(up.ends, choices, value_of(up.matrices).shape[0])
    x, positions = _gather(_uncast(up.rows))
    tokens, each, columns = value_of(by_token).shape
    _check_tokens(positions, order, each)
    _check(value_of(x).shape[0] == tokens and tokens * each == choices.count)
    _check(value_of(down.matrices).shape[2] == columns)
    calls = (up.name, activation, gated, False)
    return (x, choices.experts, weights, up.matrices, down.matrices, *calls)


def _check(holds: Any) -> None:
    if not holds:
        raise _DiffersError


def _call(node: Any, *targets: str) -> fx.Node:
    """The node, if it is a call of one of these."""
    _check(isinstance(node, fx.Node) and target_name(node) in targets)
    assert isinstance(node, fx.Node)
    return node


def _gather(node: Any) -> tuple[fx.Node, fx.Node]:
    """Rows and the positions at which they are read."""
    rows, positions = _call(node, "aten.index.Tensor").args
    _check(isinstance(positions, (list, tuple)) and len(positions) == 1)
    assert isinstance(rows, fx.Node) and isinstance(positions, (list, tuple))
    (position,) = positions
    _check(isinstance(position, fx.Node) and value_of(position).dtype == torch.int64)
    _check(value_of(position).dim() == 1)
    assert isinstance(position, fx.Node)
    return rows, position


def _unsqueezed(node: Any) -> Any:
    call = _call(node, "aten.unsqueeze.default")
    _check(call.args[1] in (-1, 1))
    return call.args[0]


def _uncast(node: fx.Node) -> Any:
    """Without the cast to the type of the matrices, which the call makes itself."""
    return node.args[0] if target_name(node) == _CAST else node


def _sorted(order: fx.Node) -> _Choices:
    _check(order.target is operator.getitem)
    _check(order.args[1] == 1)
    sort = _call(order.args[0], "aten.sort.default")
    experts = sort.args[0]
    assert isinstance(experts, fx.Node)
    _check(value_of(experts).dim() == 1 and not argument(sort, "descending"))
    firsts = [user for user in sort.users if user.args[1] == 0]
    _check(len(firsts) == 1)
    return _Choices(experts, firsts[0], order)


def _product(node: Any) -> _Product:
    call = _call(node, *_PRODUCTS)
    rows, matrices, ends, *rest = call.args
    extra = [*rest, *call.kwargs.values()]
    assert isinstance(rows, fx.Node) and isinstance(matrices, fx.Node)
    _check(isinstance(ends, fx.Node) and all(value is None for value in extra))
    assert isinstance(ends, fx.Node)
    _check(value_of(rows).dim() == 2 and value_of(matrices).dim() == 3)
    return _Product(_PRODUCTS[target_name(call)], rows, matrices, ends)


def _gate(node: Any) -> tuple[str, bool, fx.Node]:
    """Activation, whether the second half of the columns is multiplied with that of the
    first half, and what they are applied to."""
    gated = target_name(node) == "aten.mul.Tensor"
    name, operand = _activation(node.args[0] if gated else node)
    if not gated:
        return name, False, operand
    whole = _half(operand, 0)
    _check(_half(node.args[1], 1) is whole)
    return name, True, whole


def _half(node: Any, index: int) -> fx.Node:
    """What is cut into two halves of columns, of which the node is this one."""
    _check(isinstance(node, fx.Node) and node.target is operator.getitem)
    _check(node.args[1] == index)
    chunk = _call(node.args[0], "aten.chunk.default")
    _check(chunk.args[1] == 2)
    _check(argument(chunk, "dim") in (-1, 1))
    whole = chunk.args[0]
    assert isinstance(whole, fx.Node)
    _check(value_of(whole).shape[1] % 2 == 0)
    return whole


def _activation(node: Any) -> tuple[str, fx.Node]:
    call = _call(node, *_ACTIVATIONS, "aten.gelu.default")
    operand = call.args[0]
    assert isinstance(operand, fx.Node)
    if target_name(call) in _ACTIVATIONS:
        return _ACTIVATIONS[target_name(call)], operand
    return _GELU[argument(call, "approximate")], operand


def _check_ends(ends: fx.Node, choices: _Choices, num_experts: int) -> None:
    """How many choices there are of the first experts: a histogram, summed up."""
    total = _call(ends, "aten.cumsum.default")
    _check(argument(total, "dim") in (0, -1))
    counts = _call(total.args[0], "aten.histc.default")
    bounds = [argument(counts, name) for name in ("bins", "min", "max")]
    _check(bounds == [num_experts, 0, num_experts - 1])
    counted = counts.args[0]
    assert isinstance(counted, fx.Node)
    _check(_uncast(counted) is choices.sorted)


def _check_inverse(inverse: fx.Node, choices: _Choices) -> None:
    """Where each choice is in the order: ``inverse[order] = 0, 1, 2, ...``."""
    call = _call(inverse, "aten.index_put.default")
    _, positions, values = call.args[:3]
    _check(list(positions) == [choices.order])  # type: ignore[arg-type]
    _check(not argument(call, "accumulate"))
    numbers = _call(values, "aten.arange.default")
    _check(numbers.args[0] == choices.count)


def _check_tokens(tokens: fx.Node, order: fx.Node, each: int) -> None:
    """Which token has made each choice."""
    call = _call(tokens, "aten.floor_divide.default")
    _check(tuple(call.args) == (order, each))
