"""Views: which calls share the memory of their operand, and the way back from a
changed view to the tensor it is a view of.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    forces_copy,
    gives_views,
    target_name,
    value_of,
)

aten = torch.ops.aten

# Views of another shape with the elements in the same order.
_SAME_ORDER = frozenset(
    {
        "view",
        "_unsafe_view",
        "view_as",
        "reshape",
        "reshape_as",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
    }
)
# Views that change nothing.
_SAME = frozenset({"alias", "detach", "contiguous", "to", "type_as"})
_SEVERAL = frozenset({"split", "split_with_sizes", "chunk", "unbind", "tensor_split"})
# May copy, if they have to.
_MAYBE = frozenset({"contiguous", "to", "type_as", "reshape", "reshape_as", "flatten"})


def operator_base(node: fx.Node) -> str:
    """``aten.slice.Tensor`` -> ``slice``; ``''`` for what is no ATen call."""
    parts = target_name(node).split(".")
    return parts[1] if parts[0] == "aten" else ""


def is_view(node: fx.Node) -> bool:
    """Whether the call shares the memory of its first argument and changes nothing."""
    if node.target is operator.getitem:
        assert isinstance(node.args[0], fx.Node)
        return operator_base(node.args[0]) in _SEVERAL
    if not isinstance(node.target, OpOverload) or not node.args:
        return False
    if operator_base(node) in _SEVERAL:
        return True
    if not isinstance(node.args[0], fx.Node):
        return False
    return gives_views(node.target) and not _copies(node)


def _copies(node: fx.Node) -> bool:
    """Whether a call that may copy does."""
    name = operator_base(node)
    if name not in _MAYBE:
        return False
    source, result = value_of(node.args[0]), value_of(node)
    if name in ("to", "type_as"):
        return source.dtype != result.dtype or forces_copy(node)
    if name == "contiguous":
        return not source.is_contiguous()
    try:
        source.view(result.shape)
    except (RuntimeError, ValueError):  # fake tensors raise either
        return True
    return False


@dataclass(frozen=True)
class Part:
    """A block of a tensor: ``[start, end)`` of ``dim``; without the dim if ``single``."""

    dim: int
    start: int
    end: int
    single: bool = False


def part_of(view: fx.Node) -> Part | None:
    """The block that a view is, if it is one with all elements in between."""
    if view.target is operator.getitem:
        return _part_of_several(view)
    name = operator_base(view)
    if name not in ("slice", "select", "narrow"):
        return None
    shape = value_of(view.args[0]).shape
    dim = argument(view, "dim") % len(shape)
    if name == "select":
        index = argument(view, "index") % shape[dim]
        return Part(dim, index, index + 1, single=True)
    if name == "slice" and argument(view, "step") != 1:
        return None
    start = argument(view, "start") or 0
    start = min(start + shape[dim] if start < 0 else start, shape[dim])
    return Part(dim, start, start + value_of(view).shape[dim])


def _part_of_several(view: fx.Node) -> Part:
    source, index = view.args
    assert isinstance(source, fx.Node) and isinstance(index, int)
    dim = argument(source, "dim") % value_of(source.args[0]).dim()
    if operator_base(source) == "unbind":
        index %= len(source.meta["val"])
        return Part(dim, index, index + 1, single=True)
    sizes = [value.shape[dim] for value in source.meta["val"]]
    start = sum(sizes[:index])
    return Part(dim, start, start + sizes[index])


def with_part(graph: fx.Graph, whole: fx.Node, part: Part, new: fx.Node) -> fx.Node:
    """``whole`` with ``new`` as the block ``part``, as a concatenation."""
    size = value_of(whole).shape[part.dim]
    if part.single:
        new = add_call(graph, aten.unsqueeze.default, (new, part.dim), new)
    around = [
        add_call(graph, aten.slice.Tensor, (whole, part.dim, start, end), whole)
        for start, end in ((0, part.start), (part.end, size))
        if start < end
    ]
    pieces = [*around[: part.start > 0], new, *around[part.start > 0 :]]
    return new if len(pieces) == 1 else add_call(graph, aten.cat.default, (pieces, part.dim), new)


def write_back(graph: fx.Graph, view: fx.Node, whole: fx.Node, new: fx.Node) -> fx.Node | None:
    """What ``whole`` becomes when its view, made by the call ``view``, becomes
    ``new``; None if the view has no way back."""
    name = operator_base(view)
    if name in _SAME:
        return new
    part = part_of(view)
    if part is not None:
        return with_part(graph, whole, part, new)
    if name == "slice":
        args = (whole, new, *(argument(view, key) for key in ("dim", "start", "end", "step")))
        return add_call(graph, aten.slice_scatter.default, args, new)
    if name == "diagonal":
        args = (whole, new, *(argument(view, key) for key in ("offset", "dim1", "dim2")))
        return add_call(graph, aten.diagonal_scatter.default, args, new)
    if name in _SAME_ORDER:
        sizes = list(value_of(whole).shape)
        return add_call(graph, aten.reshape.default, (new, sizes), new)
    if name in ("transpose", "t", "numpy_T"):
        return add_call(graph, _callable(view), (new, *view.args[1:]), new)
    if name == "permute":
        dims = [dim % value_of(new).dim() for dim in argument(view, "dims")]
        back = [dims.index(dim) for dim in range(len(dims))]
        return add_call(graph, aten.permute.default, (new, back), new)
    return None


def _callable(node: fx.Node) -> Any:
    assert callable(node.target)
    return node.target
