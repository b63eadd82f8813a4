"""Parameters that hold several of a kind, one block after the other: the queries, keys and
values of an attention, the two halves of a gated layer, the gates of a recurrent one.

A layer with such a weight ``[3 * n, k]`` makes ``[..., 3 * n]``, which is cut into its blocks.
Parts of that dim are no parts of each block, so heads could not be split. Here the
parameter is seen as ``[3, n, k]``, the layer makes ``[..., 3, n]``, and cuts become selections
of blocks, so that ``n`` may be split. What takes weights apart itself, as recurrent layers do,
takes them as ``[3, n, k]``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes.nodes import (
    SPLITS,
    add_call,
    argument,
    is_cast,
    is_parameter,
    reshaped,
    slice_extent,
    target_name,
    value_of,
)
from tensoropt_torch.operators import OPS

aten = torch.ops.aten

BLOCKS = "blocks"  # in the meta of placeholders: how a parameter is seen
WANTED_BLOCKS = "wanted_blocks"  # how it has to be seen; None: as it is

_LINEAR = "aten.linear.default"
_ADDMM = "aten.addmm.default"
_TRANSPOSED = "tensoropt.linear_transposed.default"
_LAYERS = frozenset({_LINEAR, _ADDMM, _TRANSPOSED})
_RESHAPES = frozenset({"aten.reshape.default", "aten.unflatten.int"})
_VIEWS = frozenset(
    {
        "aten.permute.default",
        "aten.transpose.int",
        "aten.movedim.int",
        "aten.movedim.intlist",
        "aten.unsqueeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
    }
)
_SELECTIONS = frozenset({"aten.select.int", "aten.unbind.int"})
_TAKES_BLOCKS = frozenset({"tensoropt.lstm.default", "tensoropt.gru.default"})


@dataclass(frozen=True)
class Blocks:
    """Dim ``dim`` of a parameter is ``count`` equal blocks, and two dims in the graph: that of
    the blocks, and what each of them has."""

    dim: int
    count: int

    def apart(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in the graph of a parameter of this shape."""
        inner = shape[self.dim] // self.count
        return (*shape[: self.dim], self.count, inner, *shape[self.dim + 1 :])

    def together(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a parameter, or of a part of it, that has this one in the graph."""
        dim = self.dim
        return (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])

    def dim_of(self, seen: int) -> int:
        """The dim of the parameter that has this one of the graph inside."""
        return seen if seen <= self.dim else seen - 1

    def label(self, seen: str) -> str:
        """A layout of the graph, such as ``S1,R``, by dims of the parameter: ``S0/3`` is a part
        of each of the 3 blocks of dim 0."""
        return ",".join(map(self._entry, seen.split(",")))

    def _entry(self, seen: str) -> str:
        if not seen.startswith("S"):
            return seen
        dim = int(seen[1:])
        of_each = f"/{self.count}" if dim == self.dim + 1 else ""
        return f"S{self.dim_of(dim)}{of_each}"


class _OtherUseError(Exception):
    """A value is used in a way that does not keep to blocks."""


def see_blocks(graph: fx.Graph) -> None:
    """Parameters all of whose uses take them, or what a layer makes of them, apart into equal
    blocks are seen block by block; others stay as they are."""
    for parameter in graph.find_nodes(op="placeholder"):
        if not is_parameter(parameter):
            continue
        for dim in range(min(2, value_of(parameter).dim())):
            region = None if BLOCKS in parameter.meta else _region_of(parameter, dim)
            if region is not None and region.is_wanted() and _can_be_held():
                region.rewrite(graph)
        wanted = parameter.meta.get(WANTED_BLOCKS)
        if wanted is not None and BLOCKS not in parameter.meta:
            _join_blocks(graph, parameter, wanted)


@functools.cache
def _can_be_held() -> bool:
    """Whether this PyTorch has ``DTensor``s that are made of parts of blocks, and makes such of
    them: 2.11 takes what comes of one, a gradient say, for an order of axes."""
    from torch.distributed.tensor import _sharding_prop

    return hasattr(_sharding_prop, "_propagate_use_strided_shard_flag")


def _see(parameter: fx.Node, blocks: Blocks) -> None:
    value = value_of(parameter)
    parts = value.detach().reshape(blocks.apart(value.shape))
    parameter.meta["val"] = parts.requires_grad_(value.requires_grad)
    parameter.meta[BLOCKS] = blocks


def _join_blocks(graph: fx.Graph, parameter: fx.Node, blocks: Blocks) -> None:
    """The parameter is seen so, and put together again for all of its uses."""
    shape = list(value_of(parameter).shape)
    _see(parameter, blocks)
    after = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(after):
        joined = add_call(graph, aten.reshape.default, (parameter, shape), parameter)
    joined.meta = {"val": joined.meta["val"]}
    parameter.replace_all_uses_with(joined, delete_user_cb=lambda user: user is not joined)


def _region_of(parameter: fx.Node, dim: int) -> _Region | None:
    region = _Region()
    try:
        region.add(parameter, dim)
        region.check()
    except _OtherUseError:
        return None
    return region


class _Region:
    """Values that have a dim of several blocks, from parameters up to where they are cut."""

    def __init__(self) -> None:
        self._dims: dict[fx.Node, int] = {}  # which dim has the blocks
        self._cuts: dict[fx.Node, fx.Node] = {}  # calls that take a value apart, and that value
        self._block: int | None = None  # how much a block has
        self._biases: list[tuple[fx.Node, fx.Node]] = []  # of which calls

    def add(self, value: fx.Node, dim: int) -> None:
        """Follows all uses of a value."""
        if value in self._dims:
            _require(self._dims[value] == dim)
            return
        self._dims[value] = dim
        for user in value.users:
            self._follow(value, dim, user)

    def check(self) -> None:
        """Whether it is whole."""
        _require(self._block is not None)
        _require(all(call in self._dims for _, call in self._biases))
        sizes = [value_of(value).shape[dim] for value, dim in self._dims.items()]
        _require(all(size % self._width == 0 and size > self._width for size in sizes))

    def is_wanted(self) -> bool:
        """Whether its parameters may be seen as it sees them."""
        return all(
            parameter.meta.get(WANTED_BLOCKS, blocks) == blocks and BLOCKS not in parameter.meta
            for parameter, blocks in self._parameters
        )

    @property
    def _width(self) -> int:
        assert self._block is not None
        return self._block

    @property
    def _parameters(self) -> list[tuple[fx.Node, Blocks]]:
        return [
            (node, Blocks(dim, value_of(node).shape[dim] // self._width))
            for node, dim in self._dims.items()
            if node.op == "placeholder"
        ]

    # Uses

    def _follow(self, value: fx.Node, dim: int, user: fx.Node) -> None:
        name = target_name(user)
        if name in _LAYERS:
            self._follow_layer(value, dim, user)
        elif name in SPLITS:
            self._follow_split(value, dim, user)
        elif name == "aten.slice.Tensor":
            self._follow_slice(value, dim, user)
        elif name in _RESHAPES:
            self._follow_reshape(value, dim, user)
        else:
            _require(_is_unary(user))
            self.add(user, dim)

    def _follow_layer(self, value: fx.Node, dim: int, call: fx.Node) -> None:
        source, weight, bias, weight_dim = _layer(call)
        _require([source, weight, bias].count(value) == 1 and value is not source)
        if value is bias:
            _require(dim == 0)
            self._biases.append((value, call))
            return
        _require(value is weight and dim == weight_dim and value_of(value).dim() == 2)
        self.add(call, value_of(call).dim() - 1)
        if isinstance(bias, fx.Node):
            _require(value_of(bias).dim() == 1)
            root = _root(bias)
            if is_parameter(root):
                self.add(root, 0)

    def _follow_split(self, value: fx.Node, dim: int, split: fx.Node) -> None:
        _require(argument(split, "dim") % value_of(value).dim() == dim)
        sizes = [piece.shape[dim] for piece in split.meta["val"]]
        self._cut(value, split, math.gcd(*sizes))
        for user in split.users:
            index = user.args[1]
            assert user.target is operator.getitem and isinstance(index, int)
            if sizes[index] > self._width:
                self.add(user, dim)

    def _follow_slice(self, value: fx.Node, dim: int, part: fx.Node) -> None:
        if value_of(part).shape == value_of(value).shape:
            self.add(part, dim)
            return
        _require(argument(part, "dim") % value_of(value).dim() == dim)
        start, size = slice_extent(part, value_of(value).shape[dim], dim)
        _require(argument(part, "step") == 1)
        self._cut(value, part, math.gcd(start, size))
        if size > self._width:
            self.add(part, dim)

    def _follow_reshape(self, value: fx.Node, dim: int, reshape: fx.Node) -> None:
        before, after = value_of(value).shape, value_of(reshape).shape
        at = _same_place(before, dim, after)
        if after[at] == before[dim]:
            self.add(reshape, at)
            return
        _require(before[dim] % after[at] == 0 and _is_cut(reshape, at))
        self._cut(value, reshape, before[dim] // after[at])

    def _cut(self, value: fx.Node, call: fx.Node, block: int) -> None:
        _require(block > 0 and self._block in (None, block))
        self._block = block
        self._cuts[call] = value

    # The new calls

    def rewrite(self, graph: fx.Graph) -> None:
        """Sees the parameters block by block, and makes all calls anew."""
        made: dict[fx.Node, fx.Node] = {}
        old = [node for node in graph.nodes if node in self._dims or node in self._cuts]
        for parameter, blocks in self._parameters:
            _see(parameter, blocks)
            made[parameter] = parameter
        for node in old:
            if node in made:
                continue
            with graph.inserting_before(node):
                if node in self._cuts:
                    self._take_apart(graph, node, made)
                else:
                    made[node] = self._seen_in_blocks(graph, node, made)
        for node in reversed(old):
            if node.op != "placeholder" and not node.users:
                graph.erase_node(node)

    def _seen_in_blocks(
        self, graph: fx.Graph, node: fx.Node, made: dict[fx.Node, fx.Node]
    ) -> fx.Node:
        if target_name(node) in _LAYERS:
            return self._layer_of_blocks(graph, node, made)
        if target_name(node) in _RESHAPES:
            (value,) = node.all_input_nodes
            shape = self._apart(node)
            return add_call(graph, aten.reshape.default, (made[value], shape), node)
        if target_name(node) == "aten.slice.Tensor":  # of all
            (value,) = node.all_input_nodes
            return made[value]
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda used: made[used])
        assert callable(node.target)
        return add_call(graph, node.target, args, node, kwargs)

    def _layer_of_blocks(
        self, graph: fx.Graph, node: fx.Node, made: dict[fx.Node, fx.Node]
    ) -> fx.Node:
        source, weight, bias, weight_dim = _layer(node)
        if isinstance(bias, fx.Node):
            if bias not in made:
                shape = [value_of(bias).shape[0] // self._width, self._width]
                made[bias] = add_call(graph, aten.reshape.default, (bias, shape), node)
            bias = made[bias]
        target = OPS.linear_blocks.default
        return add_call(graph, target, (source, made[weight], bias, weight_dim == 1), node)

    def _take_apart(self, graph: fx.Graph, node: fx.Node, made: dict[fx.Node, fx.Node]) -> None:
        """In place of a cut of a value, one of its blocks."""
        cut = self._cuts[node]
        value, dim = made[cut], self._dims[cut]
        if target_name(node) in _RESHAPES:
            node.replace_all_uses_with(reshaped(graph, value, value_of(node).shape, node))
        elif target_name(node) in SPLITS:
            self._take_pieces(graph, node, value, dim, made)
        else:
            start, size = slice_extent(node, value_of(cut).shape[dim], dim)
            self._replace(node, self._piece(graph, node, value, dim, (start, size)), made)

    def _take_pieces(
        self,
        graph: fx.Graph,
        split: fx.Node,
        value: fx.Node,
        dim: int,
        made: dict[fx.Node, fx.Node],
    ) -> None:
        sizes = [piece.shape[dim] for piece in split.meta["val"]]
        if set(sizes) == {self._width}:
            blocks = add_call(graph, aten.unbind.int, (value, dim), split)
            for user in list(split.users):
                user.replace_input_with(split, blocks)
                user.meta["val"] = blocks.meta["val"][user.args[1]]
            return
        for user in list(split.users):
            index = user.args[1]
            assert isinstance(index, int)
            extent = sum(sizes[:index]), sizes[index]
            self._replace(user, self._piece(graph, split, value, dim, extent), made)

    def _piece(
        self, graph: fx.Graph, like: fx.Node, value: fx.Node, dim: int, extent: tuple[int, int]
    ) -> fx.Node:
        """The block, or the blocks, from a start on, of so many elements."""
        first, count = (size // self._width for size in extent)
        if count == 1:
            return add_call(graph, aten.select.int, (value, dim, first), like)
        return add_call(graph, aten.slice.Tensor, (value, dim, first, first + count), like)

    def _replace(self, node: fx.Node, piece: fx.Node, made: dict[fx.Node, fx.Node]) -> None:
        if node in self._dims:
            made[node] = piece
        else:
            node.replace_all_uses_with(piece)

    def _apart(self, node: fx.Node) -> list[int]:
        shape, dim = value_of(node).shape, self._dims[node]
        return list(Blocks(dim, shape[dim] // self._width).apart(shape))


def _require(condition: bool) -> None:
    if not condition:
        raise _OtherUseError


def _layer(call: fx.Node) -> tuple[Any, Any, Any, int]:
    """Input, weight and bias of a layer, and which dim of the weight is that of its outputs."""
    if target_name(call) != _ADDMM:
        weight_dim = 0 if target_name(call) == _LINEAR else 1
        return (*(argument(call, name) for name in ("input", "weight", "bias")), weight_dim)
    _require(argument(call, "beta") == 1 and argument(call, "alpha") == 1)
    return argument(call, "mat1"), argument(call, "mat2"), argument(call, "self"), 1


def _root(node: fx.Node) -> fx.Node:
    """What a value is made of, by calls of one operand."""
    while len(node.all_input_nodes) == 1:
        (node,) = node.all_input_nodes
    return node


def _is_unary(call: fx.Node) -> bool:
    """Whether it does the same to each element of its one operand."""
    if not isinstance(call.target, OpOverload) or len(call.all_input_nodes) != 1:
        return False
    (operand,) = call.all_input_nodes
    tags = call.target.tags
    element_wise = torch.Tag.pointwise in tags or target_name(call) == "aten.clone.default"
    if torch.Tag.nondeterministic_seeded in tags or not (element_wise or is_cast(call)):
        return False
    return value_of(call).shape == value_of(operand).shape


def _same_place(before: Sequence[int], dim: int, after: Sequence[int]) -> int:
    """Where a reshape has what was ``dim``: the first of the dims that it became."""
    size = before[dim]
    for at in range(len(after)):
        if after[at] == 1 or math.prod(after[:at]) != math.prod(before[:dim]):
            continue
        ends = (math.prod(after[at:end]) for end in range(at + 1, len(after) + 1))
        if size in ends:
            return at
    raise _OtherUseError


def _is_cut(value: fx.Node, dim: int) -> bool:
    """Whether all uses select along ``dim``, perhaps after it has moved, or take its blocks."""
    users = list(value.users)
    return bool(users) and all(_cuts(user, dim) for user in users)


def _cuts(call: fx.Node, dim: int) -> bool:
    name = target_name(call)
    if name in _TAKES_BLOCKS:
        return dim == 0
    if name in _SELECTIONS or name in SPLITS or name == "aten.slice.Tensor":
        (operand,) = call.all_input_nodes
        if name == "aten.slice.Tensor" and value_of(call).shape == value_of(operand).shape:
            return _is_cut(call, dim)
        return bool(argument(call, "dim") % value_of(operand).dim() == dim)
    moved = _moved(call, dim)
    return moved is not None and _is_cut(call, moved)


def _moved(call: fx.Node, dim: int) -> int | None:
    """Where a view has what was ``dim`` of its operand."""
    name = target_name(call)
    if _is_unary(call):
        return dim
    if name not in _VIEWS:
        return None
    (operand,) = call.all_input_nodes
    marked = torch.empty([1 + (at == dim) for at in range(value_of(operand).dim())], device="meta")
    args, kwargs = fx.map_arg((call.args, call.kwargs), lambda _: marked)
    assert callable(call.target)
    shape = list(call.target(*args, **kwargs).shape)
    return shape.index(2)
