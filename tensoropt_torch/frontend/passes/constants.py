"""Calls that depend on no parameter, buffer or input: positions, masks, tables.

``ConstantValues`` computes what they give. Values are kept compact: a dim along
which nothing changes (the batch of a causal mask) has one element and stride 0.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes.nodes import (
    FOLDED,
    argument,
    expanded,
    target_name,
    value_of,
)

# Larger intermediate values are not computed (elements that may differ).
MAX_ELEMENTS = 2**28

# Calls that need their operand's shape only, and what they fill the result with.
_FILLED_LIKE: dict[str, float] = {
    "aten.zeros_like.default": 0,
    "aten.ones_like.default": 1,
}

# Calls that give a view of their operand, and store nothing.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "alias.default",
        "detach.default",
        "expand.default",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "squeeze.dim",
        "transpose.int",
        "unsqueeze.default",
    )
)


class ConstantValues:
    """The values of the nodes of a graph that depend on nothing from outside."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._values: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            value = self._evaluate(node)
            if value is not None:
                self._values[node] = value

    def of(self, node: Any) -> torch.Tensor | None:
        """The value of a node, None if it is not constant or not one tensor."""
        value = self._values.get(node) if isinstance(node, fx.Node) else None
        return value if isinstance(value, torch.Tensor) else None

    def _evaluate(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return node.meta.get(FOLDED)
        if node.op != "call_function":
            return None
        filled = _fill_value(node)
        if filled is not None:
            return _filled(value_of(node), filled)
        if not all(used in self._values for used in node.all_input_nodes):
            return None
        if node.target is operator.getitem:
            source, index = node.args
            return self._values[source][index]  # type: ignore[index]
        if not _is_pure(node) or self._num_computed(node) > MAX_ELEMENTS:
            return None
        return self._call(node)

    def _num_computed(self, node: fx.Node) -> int:
        """How many elements a call makes: of rows that repeat just one, however many there are."""
        assert isinstance(node.target, OpOverload)
        if target_name(node) in _VIEWS:
            return 0
        if torch.Tag.pointwise not in node.target.tags:
            return _num_elements(node)
        used = [self._values[operand] for operand in node.all_input_nodes]
        if not all(isinstance(value, torch.Tensor) for value in used):
            return _num_elements(node)
        shapes = [_stored_shape(value) for value in used]
        shared = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        return math.prod(shared)

    def _call(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda used: self._values[used])
        meta = torch.device("meta")
        kwargs = {k: torch.device("cpu") if v == meta else v for k, v in kwargs.items()}
        assert isinstance(node.target, OpOverload)
        with torch.no_grad():
            if torch.Tag.pointwise in node.target.tags:
                return _call_pointwise(node.target, args, kwargs, value_of(node).shape)
            result = node.target(*args, **kwargs)
        return compact(result) if isinstance(result, torch.Tensor) else result


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with stride 0 where a tensor repeats itself."""
    shape = tensor.shape
    for dim, size in enumerate(shape):
        if tensor.stride(dim) == 0 or (size > 1 and _repeats(tensor, dim)):
            tensor = tensor.narrow(dim, 0, min(size, 1))
    return tensor.expand(shape)


def _repeats(tensor: torch.Tensor, dim: int) -> bool:
    """Whether nothing changes along a dim; of most that change, the first two elements tell."""
    first, second = tensor.narrow(dim, 0, 1), tensor.narrow(dim, 1, 1)
    return torch.equal(first, second) and torch.equal(first.expand_as(tensor), tensor)


def _stored_shape(tensor: torch.Tensor) -> list[int]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return [1 if stride == 0 else size for size, stride in sizes]


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a compact tensor that differ: size 1 where the stride is 0."""
    for dim in range(tensor.dim()):
        if tensor.stride(dim) == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor.contiguous()


def along(value: torch.Tensor | None, dim: int, size: int) -> torch.Tensor | None:
    """The elements along a dim, ``[size]``, if a tensor changes along no other one."""
    if value is None or value.dim() < -dim or value.shape[dim] != size:
        return None
    for other in range(value.dim()):
        if other != value.dim() + dim:
            if value.shape[other] > 1 and value.stride(other) != 0:
                return None
            value = value.narrow(other, 0, 1)
    return value.flatten()


def fold_constants(graph: fx.Graph) -> None:
    """Replace what is computed from constants alone by placeholders of its value.

    Single factory calls stay: ranks make their part of them.
    """
    values = ConstantValues(graph)
    folder = _Folder(graph)
    for node in list(graph.nodes):
        value = values.of(node)
        made = node.op == "placeholder" or not node.all_input_nodes or _fill_value(node) is not None
        if value is not None and not made and any(values.of(user) is None for user in node.users):
            folder.replace(node, value)


class _Folder:
    """Adds placeholders, one for each different value."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._made: list[fx.Node] = graph.find_nodes(op="placeholder")

    def replace(self, node: fx.Node, value: torch.Tensor) -> None:
        source = self._source(node, stored(value))
        with self._graph.inserting_before(node):
            node.replace_all_uses_with(expanded(self._graph, source, value.shape))

    def _source(self, node: fx.Node, value: torch.Tensor) -> fx.Node:
        for made in self._made:
            folded = made.meta.get(FOLDED)
            if folded is not None and _same(folded, value):
                return made
        fake = value_of(node).new_empty(value.shape)
        with self._graph.inserting_after(self._made[-1]):
            source = self._graph.placeholder(f"folded_{len(self._made)}")
        source.meta = {"val": fake, FOLDED: value}
        self._made.append(source)
        return source


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def _fill_value(node: fx.Node) -> Any:
    """What a call fills its result with, if it does nothing else."""
    name = target_name(node)
    if name == "aten.full_like.default":
        value = argument(node, "fill_value")
        return None if isinstance(value, fx.Node) else value
    return _FILLED_LIKE.get(name)


def _filled(like: torch.Tensor, value: float) -> torch.Tensor:
    device = "cpu" if like.device.type == "meta" else like.device
    return torch.full((), value, dtype=like.dtype, device=device).expand(like.shape)


def _is_pure(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or node.is_impure():
        return False
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return not random and "empty" not in str(node.target)


def _num_elements(node: fx.Node) -> int:
    value = node.meta["val"]
    values = value if isinstance(value, (tuple, list)) else [value]
    return sum(math.prod(v.shape) for v in values if isinstance(v, torch.Tensor))


def _call_pointwise(target: OpOverload, args: Any, kwargs: Any, shape: torch.Size) -> torch.Tensor:
    """Compute each different element once, however often it repeats."""
    result = target(*fx.node.map_aggregate(args, _stored_argument), **kwargs)
    assert isinstance(result, torch.Tensor)
    return compact(result.expand(shape) if result.shape != shape else result)


def _stored_argument(value: Any) -> Any:
    return stored(value) if isinstance(value, torch.Tensor) else value
