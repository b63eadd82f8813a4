"""Elements that are read, or written, at a position of each row: ``x[arange(len(x)), i]``.

The tensor of all rows says nothing but that each position is one of its own row. As an index it
would make rows positions in the whole tensor, which has to be whole then; gathers and scatters
along the other dim work row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tensoropt_torch.frontend.passes.constants import ConstantValues, along
from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    expanded,
    reshaped,
    target_name,
    value_of,
)

aten = torch.ops.aten

_READS = "aten.index.Tensor"
_WRITES = frozenset({"aten.index_put.default", "aten._unsafe_index_put.default"})


def row_positions_to_gathers(graph: fx.Graph) -> None:
    """Indexing with all rows of some dims, and with positions in one other dim, is a gather;
    writing there is a scatter."""
    nodes = [n for n in graph.nodes if target_name(n) == _READS or target_name(n) in _WRITES]
    values = ConstantValues(graph) if nodes else None
    for node in nodes:
        assert values is not None
        indexing = _Indexing.of(node, values)
        if indexing is None:
            continue
        with graph.inserting_before(node):
            writer = _Writer(graph, node, indexing)
            result = writer.read() if target_name(node) == _READS else writer.written()
        node.replace_all_uses_with(result)
        graph.erase_node(node)


@dataclass(frozen=True)
class _Indexing:
    """What the indices of a call say.

    Attributes:
        rows: the dims of the tensor of which all rows are taken, and the dims of positions
            along which they are, in the order of the first.
        dim: the dim in which there are positions.
        index: the positions.
        shape: of all positions, as indices broadcast.
        at: where their dims begin in what is read.
    """

    rows: dict[int, int]
    dim: int
    index: fx.Node
    shape: tuple[int, ...]
    at: int

    @staticmethod
    def of(node: fx.Node, values: ConstantValues) -> _Indexing | None:
        """None: these are other indices."""
        sizes = value_of(node.args[0]).shape
        indices: Any = node.args[1]
        given = {dim: index for dim, index in enumerate(indices) if index is not None}
        if any(value_of(index).dtype not in (torch.int64, torch.int32) for index in given.values()):
            return None
        shapes = [value_of(index).shape for index in given.values()]
        shape = tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
        rows: dict[int, int] = {}
        for dim, index in given.items():
            place = _dim_of_rows(values.of(index), len(shape), sizes[dim])
            if place is not None and place not in rows.values():
                rows[dim] = place
        (dim, *more) = [dim for dim in given if dim not in rows] or [-1, -1]
        if not rows or more:
            return None
        dims = sorted(given)
        adjacent = dims == list(range(dims[0], dims[-1] + 1))
        return _Indexing(rows, dim, given[dim], shape, dims[0] if adjacent else 0)


def _dim_of_rows(index: torch.Tensor | None, rank: int, size: int) -> int | None:
    """The dim of positions along which an index is 0, 1, ... to the last of ``size``; None: it
    is another one."""
    for dim in range(0 if index is None else index.dim()):
        assert index is not None
        found = along(index, dim - index.dim(), size)
        if size > 1 and found is not None and found.tolist() == list(range(size)):
            return rank - index.dim() + dim
    return None


class _Writer:
    """Writes the calls. Inside, dims are in the order: rows, positions, all others."""

    def __init__(self, graph: fx.Graph, node: fx.Node, indexing: _Indexing) -> None:
        self._graph = graph
        self._like = node
        self._indexing = indexing
        rows = indexing.rows
        rank = value_of(node.args[0]).dim()
        others = [dim for dim in range(rank) if dim not in rows and dim != indexing.dim]
        self._order = [*rows, indexing.dim, *others]
        self._along = len(rows)
        self._free = [d for d in range(len(indexing.shape)) if d not in rows.values()]
        self._tensor = self._permuted(node.args[0], self._order)

    def read(self) -> fx.Node:
        """What is read, as the call gives it."""
        found = self._call(aten.gather.default, self._tensor, self._along, self._index())
        found = reshaped(self._graph, found, self._read_shape(), self._like)
        return self._permuted(found, _inverse(self._order_of_read()))

    def written(self) -> fx.Node:
        """The tensor with what is written."""
        values: Any = self._like.args[2]
        order = self._order_of_read()
        shape = self._read_shape()
        source = expanded(self._graph, values, [shape[place] for place in _inverse(order)])
        index = self._index()
        source = self._permuted(source, order)
        source = reshaped(self._graph, source, value_of(index).shape, self._like)
        adds = argument(self._like, "accumulate")
        target = aten.scatter_add.default if adds else aten.scatter.src
        result = self._call(target, self._tensor, self._along, index, source)
        return self._permuted(result, _inverse(self._order))

    def _index(self) -> fx.Node:
        """The positions, from 0 on, for each element of what is read."""
        indexing, size = self._indexing, value_of(self._tensor).shape[self._along]
        index = indexing.index
        from_end = self._call(aten.lt.Scalar, index, 0)
        moved = self._call(aten.add.Scalar, index, size)
        index = self._call(aten.where.self, from_end, moved, index)
        if value_of(index).dtype != torch.int64:
            index = self._call(aten.to.dtype, index, torch.int64)
        index = expanded(self._graph, index, indexing.shape)
        index = self._permuted(index, [*indexing.rows.values(), *self._free])
        shape = self._read_shape()
        first, others = self._along + len(self._free), len(shape)
        rows, free, rest = shape[: self._along], shape[self._along : first], shape[first:others]
        count = torch.Size(free).numel()
        index = reshaped(self._graph, index, [*rows, count, *[1] * len(rest)], self._like)
        return expanded(self._graph, index, [*rows, count, *rest])

    def _read_shape(self) -> list[int]:
        """The shape of what is read, in the order of dims inside."""
        shape, sizes = self._indexing.shape, value_of(self._tensor).shape
        free = [shape[dim] for dim in self._free]
        return [*sizes[: self._along], *free, *sizes[self._along + 1 :]]

    def _order_of_read(self) -> list[int]:
        """Which dim of what the call reads each dim inside is."""
        at, rank = self._indexing.at, len(self._indexing.shape)
        positions = [at + dim for dim in (*self._indexing.rows.values(), *self._free)]
        number = len(self._order) - self._along - 1
        return [*positions, *[dim if dim < at else dim + rank for dim in range(number)]]

    def _permuted(self, tensor: Any, order: Sequence[int]) -> fx.Node:
        assert isinstance(tensor, fx.Node)
        if list(order) == sorted(order):
            return tensor
        return self._call(aten.permute.default, tensor, list(order))

    def _call(self, target: Any, *args: Any) -> fx.Node:
        return add_call(self._graph, target, args, self._like)


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)
