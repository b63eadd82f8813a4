"""What the memory of a compiled graph is, without compiling it.

::

    for event in GraphMemory(graph).events(freed):
        event.node, event.made_bytes, event.freed     # in the order of the calls

Inductor computes pointwise calls where they are read, and what only they read has no memory. Calls
of libraries (products, attention, collectives), reductions, outputs, and what these read, have
some; it is freed at its last use, and where a pointwise call of that size is made then, taken over.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch.frontend.passes import gives_views
from tensoropt_torch.simulate.tracker import name_of

# Besides those whose tag says so.
_POINTWISE = frozenset(
    {
        *("full", "full_like", "zeros_like", "ones_like", "scalar_tensor", "iota", "arange"),
        *("where", "convert_element_type", "clone", "_to_copy", "copy", "embedding", "gather"),
        *("cat", "slice_scatter", "select_scatter", "constant_pad_nd", "lift_fresh_copy", "index"),
        *("_low_memory_max_pool_offsets_to_indices", "inductor_lookup_seed", "inductor_random"),
    }
)
_REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "var_mean", "any", "prod", "argmax"})
# They give their operand, or write into it.
_SAME = frozenset({"_unsafe_view", "reshape", "wait_tensor"})
_WRITES = frozenset({"write_into_"})
_TAKES_OVER = frozenset({"all_reduce"})  # the memory of an operand that nobody else reads


@dataclass(frozen=True)
class Event:
    """A call that has memory, or that frees some.

    Attributes:
        made_bytes: new memory.
        takes_over: whose memory it has instead, if any.
        freed: whose memory nobody reads any more.
    """

    node: fx.Node
    made_bytes: int
    takes_over: fx.Node | None
    freed: tuple[fx.Node, ...]


class GraphMemory:
    """That of one graph, of forward or of backward."""

    def __init__(self, graph: fx.Graph) -> None:
        self._nodes = list(graph.nodes)
        self._output = graph.output_node()
        self._kinds = {node: _kind(node) for node in self._nodes}
        self._owned = {node: self._has_memory(node) for node in reversed(self._nodes)}
        self._reads: dict[fx.Node, frozenset[fx.Node]] = {}
        self._last: dict[fx.Node, int] = {}
        for number, node in enumerate(self._nodes):
            if node.op == "placeholder":
                self._last[node] = -1
            elif node is self._output or self._owned[node]:
                for operand in node.all_input_nodes:
                    for owner in self.read(operand):
                        self._last[owner] = number

    def owner(self, node: fx.Node) -> fx.Node:
        """Who has the memory in which a value lies."""
        while self._kinds[node] == "view":
            node = node.all_input_nodes[0]
        return node

    def read(self, node: fx.Node) -> frozenset[fx.Node]:
        """Whose memory is read where a value is."""
        if node not in self._reads:
            own = self.owner(node)
            if own.op == "placeholder" or self._owned[own]:
                self._reads[node] = frozenset({own})
            else:
                self._reads[node] = frozenset().union(*map(self.read, own.all_input_nodes))
        return self._reads[node]

    def events(self, may_free: Callable[[fx.Node], bool]) -> Iterator[Event]:
        """In order; ``may_free`` says which placeholders go after their last use."""
        ends: dict[int, list[fx.Node]] = {}
        for owner, number in self._last.items():
            is_given = self._nodes[number] is self._output
            if not is_given and num_bytes(owner) and (owner.op != "placeholder" or may_free(owner)):
                ends.setdefault(number, []).append(owner)
        for number, node in enumerate(self._nodes):
            freed = ends.get(number, [])
            made = num_bytes(node) if node.op == "call_function" and self._owned[node] else 0
            before = next((one for one in freed if num_bytes(one) == made), None) if made else None
            if before is not None and self._kinds[node] not in ("pointwise", "takes over"):
                before = None
            if before is not None:
                made, freed = 0, [one for one in freed if one is not before]
            if made and node not in self._last:
                freed = [*freed, node]
            if made or freed or before is not None:
                yield Event(node, made, before, tuple(freed))

    def _has_memory(self, node: fx.Node) -> bool:
        if node.op != "call_function":
            return False
        kind = self._kinds[node]
        if kind in ("view", "write"):
            return kind == "write"
        if kind == "pointwise":
            return any(self._kinds[u] not in ("pointwise", "reduction") for u in self._users(node))
        return True

    def _users(self, node: fx.Node) -> Iterator[fx.Node]:
        """Those who read a value, of views of it, too."""
        for user in node.users:
            if self._kinds[user] == "view":
                yield from self._users(user)
            else:
                yield user


def num_bytes(node: fx.Node) -> int:
    """Of the tensor that a node gives."""
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _kind(node: fx.Node) -> str:
    if node.op != "call_function":
        return node.op
    if node.target is operator.getitem:
        (made,) = node.all_input_nodes
        return "view" if _kind(made) == "view" else "part"
    return _kind_of(node.target) if isinstance(node.target, OpOverload) else "library"


@cache
def _kind_of(target: OpOverload) -> str:
    name = name_of(target)
    if name in _SAME or gives_views(target):
        return "view"
    if name in _WRITES:
        return "write"
    if name in _TAKES_OVER:
        return "takes over"
    if name in _POINTWISE or torch.Tag.pointwise in target.tags:
        return "pointwise"
    return "reduction" if name in _REDUCTIONS else "library"


def outputs_of(graph: fx.Graph) -> Sequence[fx.Node | None]:
    """What it gives, in order."""
    given = graph.output_node().args[0]
    assert isinstance(given, Sequence)
    return [one if isinstance(one, fx.Node) else None for one in given]
