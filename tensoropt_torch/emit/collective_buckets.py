"""Buckets of collectives in traced graphs: what many small ones would send, one sends.

::

    in_buckets(graph, Buckets(sums=25 * 2**20, shards=4 * 2**20))

What the graph only gives, such as the gradients of parameters, is summed (or scattered) together
where the last of a bucket is made, and waited for at the end of the graph. What is gathered of
inputs alone, such as parameters, is gathered together where the first of a bucket is needed. Only
buckets are written to, before they are sent.

Nothing moves that would read what is written in the meantime, or draw other random numbers. What
goes into buckets does not depend on sizes of what is not sent: ranks whose parts are uneven would
decide differently, and have graphs with different collectives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.emit.written import Writes
from tensoropt_torch.operators import OPS

_COLLECTIVES = torch.ops._c10d_functional
_ATEN = torch.ops.aten
_SUM = _COLLECTIVES.all_reduce.default
_SCATTER = _COLLECTIVES.reduce_scatter_tensor.default
_GATHER = _COLLECTIVES.all_gather_into_tensor.default
_REDUCED = (_SUM, _SCATTER)
_WAIT = _COLLECTIVES.wait_tensor.default
_WRITE = OPS.write_into_.default
_WRITTEN_BYTES = 256 * 1024  # by one call, of parts that are smaller
# Buckets of shards are an eighth of all shards at most, or a MiB: parameters that are gathered
# together are in memory as long as any of them, which of a small model would be most of it.
_SHARE, _LEAST_SHARDS = 8, 2**20


@dataclass(frozen=True)
class Buckets:
    """Bytes of what is summed together, and of what is gathered or scattered together; 0: each by
    itself."""

    sums: int = 0
    shards: int = 0


def in_buckets(graph: fx.Graph, sizes: Buckets) -> None:
    """Changes the graph, whose values are in the meta of its nodes."""
    for target in _REDUCED:
        moves = _Moves(graph)
        calls = graph.find_nodes(op="call_function", target=target)
        calls = [node for node in calls if moves.is_only_given(node)]
        most = sizes.sums if target is _SUM else _most_shards(calls, sizes)
        for members in _buckets(calls, most):
            _reduce_together(graph, members)
    moves = _Moves(graph)
    gathers = graph.find_nodes(op="call_function", target=_GATHER)
    gathers = [node for node in gathers if moves.is_of_inputs(node)]
    for members in _buckets(gathers, _most_shards(gathers, sizes)):
        _gather_together(graph, members)
    graph.lint()


def _most_shards(calls: Sequence[fx.Node], sizes: Buckets) -> int:
    """Bytes of a bucket of those that are gathered, or scattered."""
    return min(sizes.shards, max(_LEAST_SHARDS, sum(map(_bytes, calls)) // _SHARE))


def _value(node: fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _bytes(node: fx.Node) -> int:
    return max(v.numel() * v.element_size() for v in (_value(node), _value(_operand(node))))


def _operand(node: fx.Node) -> fx.Node:
    operand = node.args[0]
    assert isinstance(operand, fx.Node)
    return operand


def _wait_of(node: fx.Node) -> fx.Node | None:
    """The only user of a collective."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is _WAIT else None


class _Moves:
    """What may move to another place of a graph, as it is now."""

    def __init__(self, graph: fx.Graph) -> None:
        self._writes = Writes(graph)
        self._of_sums: set[fx.Node] = set()  # or of what is scattered: they may move themselves
        for node in graph.nodes:
            if node.target in _REDUCED or not self._of_sums.isdisjoint(node.all_input_nodes):
                self._of_sums.add(node)

    def is_only_given(self, node: fx.Node) -> bool:
        """Whether what comes of a collective only is an output, through calls that may wait."""
        wait = _wait_of(node)
        if wait is None or self._writes.reach(_operand(node)):
            return False
        found = _followers(wait)
        return all(self._may_wait(after, {wait, *found}) for after in found)

    def _may_wait(self, after: fx.Node, found: set[fx.Node]) -> bool:
        """Whether what follows from a collective, as all that is ``found`` does, may be computed
        at the end of the graph, till when what else it is made of is kept."""
        if after.target in _REDUCED or not _is_free(after):
            return False
        return all(self._may_be_kept(other) for other in set(after.all_input_nodes) - found)

    def _may_be_kept(self, node: fx.Node) -> bool:
        """Whether it is small beside what is computed with it, and stays as it is: indices, such as
        those of the rows of a table, and what is made of nothing, such as zeros."""
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or node in self._of_sums:
            return False
        is_new = node.op == "call_function" and not node.all_input_nodes
        is_exact = not value.is_floating_point() and not value.is_complex()
        return (is_new or is_exact) and not self._writes.reach(node)

    def is_of_inputs(self, node: fx.Node) -> bool:
        """Whether what is gathered is an input, through calls of one operand."""
        if _wait_of(node) is None:
            return False
        operand = _operand(node)
        while operand.op != "placeholder":
            if len(operand.all_input_nodes) != 1 or operand.target is _WAIT:
                return False
            if not _is_free(operand) or self._writes.reach(operand):
                return False
            (operand,) = operand.all_input_nodes
        return not self._writes.reach(operand)


def _is_free(node: fx.Node) -> bool:
    """Whether a call gives the same wherever its operands are there: it writes to nothing and draws
    no numbers."""
    if node.target is operator.getitem:
        return True
    return (
        isinstance(node.target, OpOverload)
        and not node.target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in node.target.tags
    )


def _bytes_of(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _followers(node: fx.Node) -> list[fx.Node]:
    """All that is made of it, in order, without the output."""
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            if user.op != "output" and user not in found:
                found[user] = None
                waiting.append(user)
    return sorted(found)


def _buckets(nodes: Sequence[fx.Node], most: int) -> list[list[fx.Node]]:
    """Those of one group and dtype together, in order, till they are so many bytes; without
    those that are alone."""
    found: list[list[fx.Node]] = []
    open_ones: dict[Any, list[fx.Node]] = {}
    for node in nodes if most else ():
        key = node.args[1:], _value(node).dtype
        members = open_ones.get(key)
        if members is None:
            members = open_ones[key] = []
            found.append(members)
        members.append(node)
        if sum(map(_bytes, members)) >= most:
            del open_ones[key]
    return [members for members in found if len(members) > 1]


class _Writer:
    """Writes calls with their values, one after the other."""

    def __init__(self, graph: fx.Graph, after: fx.Node) -> None:
        self._graph = graph
        self.last = after

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        with self._graph.inserting_after(self.last):
            node = self._graph.call_function(function, args, kwargs)
        values = fx.map_arg(args, lambda operand: operand.meta["val"])
        node.meta["val"] = function(*values, **kwargs)
        self.last = node
        return node

    def move(self, node: fx.Node) -> None:
        self.last.append(node)
        self.last = node


def _written_together(writer: _Writer, members: Sequence[fx.Node], count: int) -> fx.Node:
    """A bucket with the operands beside each other, as ``count`` rows one after the other. Large
    ones are written as soon as they are made, so that their memory is free before the next one
    has its own; small ones together, as the host needs longer to call than to copy these."""
    lengths = [_value(_operand(member)).numel() // count for member in members]
    writer.last, offset = members[0], 0
    size = [count * sum(lengths)]
    bucket = writer.call(_ATEN.new_empty.default, _operand(members[0]), size)
    waiting: list[fx.Node] = []
    begin = waiting_bytes = 0
    for member, length in zip(members, lengths, strict=True):
        waiting.append(_operand(member))
        waiting_bytes += _bytes_of(waiting[-1])
        offset += length
        if waiting_bytes >= _WRITTEN_BYTES or member is members[-1]:
            writer.last = max(writer.last, member)
            writer.call(_WRITE, bucket, waiting, count, begin)
            waiting, waiting_bytes, begin = [], 0, offset
    return bucket


def _reduce_together(graph: fx.Graph, members: Sequence[fx.Node]) -> None:
    scatters = members[0].target is _SCATTER
    count: Any = members[0].args[2] if scatters else 1
    writer = _Writer(graph, members[-1])
    flat = _written_together(writer, members, count)
    started = writer.call(members[0].target, flat, *members[0].args[1:])  # type: ignore[arg-type]
    writer.last = next(node for node in reversed(graph.nodes) if node.op != "output")
    made = writer.call(_ATEN.reshape.default, writer.call(_WAIT, started), [-1])
    _share_out(writer, members, made, [_value(n).numel() for n in members], 0)


def _gather_together(graph: fx.Graph, members: Sequence[fx.Node]) -> None:
    count: Any = members[0].args[1]
    for member in members[1:]:
        _move_before(_operand(member), members[0])
    before = members[0].prev
    writer = _Writer(graph, before)
    rows = [writer.call(_ATEN.reshape.default, _operand(n), [-1]) for n in members]
    flat = writer.call(_ATEN.cat.default, rows)
    started = writer.call(_GATHER, flat, *members[0].args[1:])
    made = writer.call(_ATEN.reshape.default, writer.call(_WAIT, started), [count, -1])
    lengths = [_value(row).numel() for row in rows]
    _share_out(writer, members, made, lengths, 1, moves=False)


def _share_out(
    writer: _Writer,
    members: Sequence[fx.Node],
    made: fx.Node,
    lengths: Sequence[int],
    dim: int,
    moves: bool = True,
) -> None:
    """Each member's part takes the place of what it gave; ``moves``: with what is made of it."""
    parts = writer.call(_ATEN.split_with_sizes.default, made, list(lengths), dim)
    for index, member in enumerate(members):
        wait = _wait_of(member)
        assert wait is not None
        part = writer.call(operator.getitem, parts, index)
        own = writer.call(_ATEN.reshape.default, part, list(_value(member).shape))
        if not _value(own).is_contiguous():  # as those who take it have seen it
            own = writer.call(_ATEN.clone.default, own, memory_format=torch.contiguous_format)
        followers = _followers(wait) if moves else []
        wait.replace_all_uses_with(own)
        for node in followers:
            writer.move(node)
        for node in (wait, member):
            node.graph.erase_node(node)


def _move_before(node: fx.Node, place: fx.Node) -> None:
    """With all that it is made of, where that is not there yet."""
    chain = []
    while node.op != "placeholder" and not node < place:
        chain.append(node)
        (node,) = node.all_input_nodes
    for moved in reversed(chain):
        place.prepend(moved)
