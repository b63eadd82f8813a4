"""Numbers that become inputs of a captured graph.

A graph is captured twice, with the values of numbers and with their marks. It may take them as
inputs if both graphs are the same node for node, but for numbers of which the one has the value
and the other the mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.watching.attribute_uses import Place
from tensoropt_torch.frontend.watching.expressions import Expression, Guard, Values, alike
from tensoropt_torch.frontend.watching.numbers import (
    NumberTrace,
    UnfollowableError,
    marks,
    torch_number,
)

_LARGEST_USUAL = 100_000
_USUAL_DIGITS = 14  # with the point

Lifted = int | Place  # the number of an input, or an attribute


@dataclass(frozen=True)
class Numbers:
    """The numbers that a graph takes as inputs.

    Attributes:
        keys: which they are: the number of the input, or the attribute.
        guards: what has to be the same as at capture.
        marks: what the graph has in their places.
        expressions: what belongs there.
    """

    keys: tuple[Lifted, ...]
    guards: tuple[Guard, ...]
    marks: tuple[Any, ...] = ()
    expressions: tuple[Expression, ...] = ()

    def hold_for(self, values: Values) -> bool:
        """Whether the graph is that for these numbers."""
        return all(guard.holds(values) for guard in self.guards)

    def of(self, values: Values) -> tuple[Any, ...]:
        """What belongs in the places of the marks."""
        return tuple(expression.of(values) for expression in self.expressions)

    def places_in(self, arguments: Any) -> list[int]:
        """Which of the marks are among the arguments of a call."""
        leaves = pytree.tree_leaves(arguments)
        return [number for leaf in leaves for number, m in enumerate(self.marks) if alike(leaf, m)]


class _Captured(Protocol):
    @property
    def graph_module(self) -> fx.GraphModule: ...
    @property
    def constants(self) -> Mapping[str, torch.Tensor]: ...


def numbers_of(
    plain: _Captured, marked: _Captured, trace: NumberTrace, keys: Sequence[Lifted]
) -> Numbers:
    """The numbers that the marked graph may take as inputs.

    Raises:
        UnfollowableError: the graphs differ in more.
    """
    found: dict[Expression, Any] = {}
    for value, mark in _differences(plain, marked):
        expression = _expression(trace, value, mark)
        found[expression] = mark
    taken = list(found.values())
    if len({repr(mark) for mark in taken}) < len(taken) or not all(map(_is_unusual, taken)):
        raise UnfollowableError("a mark could be another number of the graph")
    return Numbers(tuple(keys), tuple(trace.guards), tuple(taken), tuple(found))


def _is_unusual(mark: Any) -> bool:
    """Whether no program and no default of an operator has such a number: calls of a rank have
    numbers where they have marks."""
    if type(mark) is int or mark.is_integer():
        return bool(abs(mark) > _LARGEST_USUAL)
    return len(repr(mark)) >= _USUAL_DIGITS


def _expression(trace: NumberTrace, value: Any, mark: Any) -> Expression:
    known = [marks(number) for number in trace.found]
    found = {e: None for e, v, m in known if alike(v, value) and alike(m, mark)}
    if not found and type(value) is float:  # a call takes whole numbers as floats
        found = {
            Expression("float", (e,)): None
            for e, v, m in known
            if type(v) is int and alike(float(v), value) and alike(float(m), mark)
        }
    if len(found) != 1:
        raise UnfollowableError(f"the graph has {value} for a number, or {mark}")
    return next(iter(found))


def _differences(plain: _Captured, marked: _Captured) -> Iterator[tuple[Any, Any]]:
    """The literals in which the graphs differ."""
    nodes = list(plain.graph_module.graph.nodes), list(marked.graph_module.graph.nodes)
    if len(nodes[0]) != len(nodes[1]):
        raise UnfollowableError("the graphs have different numbers of calls")
    twins: dict[fx.Node, fx.Node] = {}
    for one, other in zip(*nodes, strict=True):
        twins[one] = other
        if (one.op, str(one.target)) != (other.op, str(other.target)) or _metas(one) != _metas(
            other
        ):
            raise UnfollowableError(f"the graphs have {one.target} and {other.target}")
        yield from _differing(one, other, twins)
    if plain.constants.keys() != marked.constants.keys():
        raise UnfollowableError("the graphs have other constants")
    for name, constant in plain.constants.items():
        if not same_tensors(constant, marked.constants[name]):
            raise UnfollowableError(f"constant {name} depends on a number")


def _differing(
    one: fx.Node, other: fx.Node, twins: Mapping[fx.Node, fx.Node]
) -> Iterator[tuple[Any, Any]]:
    mine, spec = pytree.tree_flatten((one.args, one.kwargs), is_leaf=_is_leaf)
    theirs, other_spec = pytree.tree_flatten((other.args, other.kwargs), is_leaf=_is_leaf)
    if spec != other_spec:
        raise UnfollowableError(f"the calls of {one.target} differ")
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, fx.Node):
            if twins[a] is not b:
                raise UnfollowableError(f"the calls of {one.target} have other operands")
        elif torch_number(a) and torch_number(b):
            if not alike(a, b):
                yield a, b
        elif type(a) is not type(b) or repr(a) != repr(b):
            raise UnfollowableError(f"the calls of {one.target} have {a} and {b}")


def _is_leaf(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _metas(node: fx.Node) -> list[Any]:
    return [
        (tuple(v.shape), v.dtype, v.stride()) if isinstance(v, torch.Tensor) else repr(v)
        for v in pytree.tree_leaves(node.meta.get("val"))
    ]


def same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors that enter graphs are the same; of buffers without values all count as
    equal."""
    if one is other:
        return True
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    if isinstance(one, FakeTensor) or isinstance(other, FakeTensor):
        return isinstance(one, FakeTensor) and isinstance(other, FakeTensor)
    return one.device.type == "meta" or torch.equal(one, other)
