"""Calls that write where they are told (``torch.div(a, b, out=c)``)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    replace_results,
    source_line,
    value_of,
)


def make_out_calls_functional(graph: fx.Graph) -> None:
    """A call with ``out`` becomes the one without, whose results are copied to where they
    shall be. What it returns are the tensors that it was given, as in PyTorch."""
    for node in list(graph.nodes):
        outs = _outs_of(node)
        if not outs:
            continue
        with graph.inserting_before(node):
            call = _functional_call(graph, node)
            written = [
                _written(graph, node, out, result)
                for out, result in zip(outs, _results(graph, call), strict=True)
            ]
        if isinstance(node.meta["val"], (tuple, list)):
            replace_results(graph, node, written)
        else:
            node.replace_all_uses_with(written[0])
            graph.erase_node(node)


def _outs_of(node: fx.Node) -> list[fx.Node]:
    """What a call writes to because it is given as ``out``."""
    if not isinstance(node.target, OpOverload):
        return []
    found: list[fx.Node] = []
    for name in _out_names(node.target):
        given = node.kwargs.get(name)
        found += [given] if isinstance(given, fx.Node) else given or []  # type: ignore[arg-type]
    return found


def _out_names(target: OpOverload) -> list[str]:
    return [
        argument.name
        for argument in target._schema.arguments
        if argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
    ]


def _functional_call(graph: fx.Graph, node: fx.Node) -> fx.Node:
    assert isinstance(node.target, OpOverload)
    names = _out_names(node.target)
    for twin in _twins(node.target, names):
        kwargs = {name: given for name, given in node.kwargs.items() if name not in names}
        return add_call(graph, twin, node.args, node, kwargs)
    raise TensorOptError(
        f"operator '{node.name}' ({node.target}) writes to an 'out' argument and has no "
        f"counterpart that does not; assign what it computes instead{source_line(node)}"
    )


def _twins(target: OpOverload, outs: Sequence[str]) -> Iterator[OpOverload]:
    """The overloads that take the same without ``outs``, those first that take nothing else."""
    wanted = [_signature(a) for a in target._schema.arguments if a.name not in outs]
    packet = target.overloadpacket
    others: list[OpOverload] = [getattr(packet, name) for name in packet.overloads()]
    others = [other for other in others if not other._schema.is_mutable]
    taken = [(other, [_signature(a) for a in other._schema.arguments]) for other in others]
    yield from (other for other, signature in taken if signature == wanted)
    for other, signature in taken:
        rest = [a for a in other._schema.arguments if _signature(a) not in wanted]
        if all(s in signature for s in wanted) and all(a.has_default_value() for a in rest):
            yield other


def _signature(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)


def _results(graph: fx.Graph, call: fx.Node) -> list[fx.Node]:
    """The tensors that a call gives, one by one."""
    values = call.meta["val"]
    if isinstance(values, torch.Tensor):
        return [call]
    return [
        add_call(graph, operator.getitem, (call, index), call) for index, _ in enumerate(values)
    ]


def _written(graph: fx.Graph, node: fx.Node, out: fx.Node, result: fx.Node) -> fx.Node:
    shape, given = value_of(result).shape, value_of(out).shape
    if shape != given:
        raise TensorOptError(
            f"operator '{node.name}' ({node.target}) gives a tensor {tuple(shape)}, but its 'out' "
            f"is {tuple(given)}; give one of that size{source_line(node)}"
        )
    return add_call(graph, torch.ops.aten.copy_.default, (out, result), node)
