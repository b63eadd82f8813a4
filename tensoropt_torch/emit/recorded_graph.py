"""Passes over a recorded graph that change no number: views that are there already are not made
again, and sums of gradients are made in place.

Nodes carry in their ``meta`` where the tensor lies that they give, and whether the call is one of
backward.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from operator import getitem

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.emit.boxed_program import Geometry
from tensoropt_torch.emit.written import written
from tensoropt_torch.operators import OPS

GEOMETRY = "geometry"
BACKWARD = "backward"
_ATEN = torch.ops.aten
# What they are given is read later, until others have taken it.
_KEEPING = (
    OPS.begin_gathers.default,
    OPS.begin_gradient.default,
    OPS.begin_gradients.default,
    OPS.begin_value.default,
)


def merge_views(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Leaves out views that are there already, and makes others in one call; gives what stands
    for those that are left out."""
    there: dict[Geometry, fx.Node] = {}
    same: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        geometry: Geometry | None = node.meta.get(GEOMETRY)
        if geometry is None:
            continue
        known = there.setdefault(geometry, node)
        if not is_view(node) or known is node:
            if known is node and is_view(node):
                _view_at_once(node, geometry)
            continue
        node.replace_all_uses_with(known)
        same[node] = known
    return same


def _view_at_once(node: fx.Node, geometry: Geometry) -> None:
    """Makes a view of a view one of the memory, where both are contiguous."""
    whole: Geometry = geometry.memory.meta[GEOMETRY]
    if node.target is getitem or (geometry.dtype, geometry.offset) != (whole.dtype, whole.offset):
        return
    if math.prod(geometry.size) != math.prod(whole.size) or 0 in whole.size:
        return
    if geometry.is_contiguous and whole.is_contiguous:
        node.target = _ATEN.view.default
        node.args, node.kwargs = (geometry.memory, [*geometry.size]), {}


def is_view(node: fx.Node) -> bool:
    """Whether it only looks at the memory of something else. A gradient that comes back as it is
    from a queue does more."""
    geometry: Geometry | None = node.meta.get(GEOMETRY)
    if node.op != "call_function" or geometry is None or geometry.memory is node:
        return False
    source = node.args[0] if node.target is getitem else node
    assert isinstance(source, fx.Node)
    is_ours = isinstance(source.target, OpOverload) and source.target.namespace == "tensoropt"
    return not is_ours and not written(source)


def drop_views(graph: fx.Graph) -> None:
    """Views, and parts of results, that nobody takes."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users:
            if node.target is getitem or is_view(node):
                graph.erase_node(node)
        elif node.op == "get_attr" and not node.users:
            graph.erase_node(node)


def accumulate_in_place(graph: fx.Graph, kept: Sequence[fx.Node | None]) -> None:
    """Sums of gradients are made in the memory of one that nobody needs afterwards, as autograd
    makes them where nobody looks."""
    last: dict[fx.Node, fx.Node] = {}  # who uses a memory last
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            if GEOMETRY in operand.meta:
                last[operand.meta[GEOMETRY].memory] = node
    needed = {node.meta[GEOMETRY].memory for node in kept if node is not None}
    needed |= {
        operand.meta[GEOMETRY].memory
        for node in graph.nodes
        if node.target in _KEEPING
        for operand in node.all_input_nodes
        if GEOMETRY in operand.meta
    }
    for node in graph.nodes:
        if node.target is not _ATEN.add.Tensor or not node.meta[BACKWARD] or node.kwargs:
            continue
        for own, other in (node.args, node.args[::-1]):
            if not isinstance(own, fx.Node) or not isinstance(other, fx.Node):
                continue
            mine, sum_ = own.meta[GEOMETRY], node.meta[GEOMETRY]
            memory = mine.memory
            is_alone = memory.op == "call_function" and memory.meta[BACKWARD]
            alike = (mine.dtype, mine.size, mine.stride) == (sum_.dtype, sum_.size, sum_.stride)
            shares = other.meta[GEOMETRY].memory is memory
            if is_alone and alike and not shares and last[memory] is node and memory not in needed:
                if not _whole(mine):
                    continue
                node.target, node.args = _ATEN.add_.Tensor, (own, other)
                break


def _whole(geometry: Geometry) -> bool:
    """Whether it covers its memory."""
    whole: Geometry = geometry.memory.meta[GEOMETRY]
    return math.prod(geometry.size) == math.prod(whole.size) and geometry.offset == whole.offset


def own_gradients(
    gradients: Sequence[fx.Node | None], leaves: Sequence[torch.Tensor]
) -> tuple[int, ...]:
    """The numbers of those whose memory, or part of one, backward makes for them alone, and which
    lie as the leaves do."""
    shared = _shared([node.meta[GEOMETRY] for node in gradients if node is not None])
    found = []
    for number, (node, leaf) in enumerate(zip(gradients, leaves, strict=True)):
        if node is None:
            continue
        lies: Geometry = node.meta[GEOMETRY]
        is_made = lies.memory.op == "call_function" and lies.memory.meta[BACKWARD]
        alike = (lies.dtype, lies.size, lies.stride) == (leaf.dtype, leaf.shape, leaf.stride())
        if is_made and alike and lies.memory not in shared:
            found.append(number)
    return tuple(found)


def leaving_after(
    calls: Sequence[fx.Node], gradients: Mapping[int, fx.Node | None]
) -> dict[fx.Node, list[tuple[int, fx.Node]]]:
    """By call, these gradients whose memory no call after it uses, with their numbers."""
    last: dict[fx.Node, fx.Node] = {}
    for call in calls:
        for node in (call, *call.all_input_nodes):
            if GEOMETRY in node.meta:
                last[node.meta[GEOMETRY].memory] = call
    found: dict[fx.Node, list[tuple[int, fx.Node]]] = {}
    for number, gradient in gradients.items():
        if gradient is not None and gradient.op == "call_function":
            found.setdefault(last[gradient.meta[GEOMETRY].memory], []).append((number, gradient))
    return found


def _shared(geometries: Sequence[Geometry]) -> set[fx.Node]:
    """The memories of which two may have the same part."""
    parts: dict[fx.Node, list[Geometry]] = {}
    for lies in geometries:
        parts.setdefault(lies.memory, []).append(lies)
    return {memory for memory, own in parts.items() if not _are_apart(own)}


def _are_apart(parts: Sequence[Geometry]) -> bool:
    in_order = sorted(parts, key=lambda part: part.offset)
    return all(
        one.is_contiguous
        and one.dtype == other.dtype
        and one.offset + math.prod(one.size) <= other.offset
        for one, other in itertools.pairwise(in_order)
    )
