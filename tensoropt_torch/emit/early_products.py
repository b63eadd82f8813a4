"""Products of a traced backward that free more than they make run as soon as they can.

::

    run_early(graph, freed)    # the numbers of inputs whose memory is free after their last use

Of a layer, backward multiplies the gradient of what it gives by its weight, and by what it was
given, which ends there. Autograd makes both in this order, and has the gradient of the input in
memory while that of the weight is made. The other way round, what the layer was given is free
before: of a layer whose inputs are more than its weights that is less at a time. So compiled steps
have room for what they need besides, such as values that are made together for one kernel.

Collectives stay where they are: ranks whose parts are uneven may move other products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.written import Writes, memory_of, written

_ATEN = torch.ops.aten
_PRODUCTS = (_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default)


def run_early(graph: fx.Graph, freed: Collection[int]) -> None:
    """Changes the order of the graph, whose values are in the meta of its nodes; others of its
    inputs are somebody else's."""
    inputs = graph.find_nodes(op="placeholder")
    kept = {node for number, node in enumerate(inputs) if number not in freed}
    writes = Writes(graph)
    for target in _PRODUCTS:
        for node in graph.find_nodes(op="call_function", target=target):
            if not any(writes.reach(operand) for operand in node.all_input_nodes):
                _run_early(graph, node, kept)
    graph.lint()


def mean_bytes(graph: fx.Graph) -> float:
    """Of what a call of the graph makes."""
    made = [
        _bytes(node)
        for node in graph.nodes
        if node.op == "call_function" and memory_of(node) is node
    ]
    return sum(made) / max(1, len(made))


def _run_early(graph: fx.Graph, node: fx.Node, kept: Collection[fx.Node]) -> None:
    memories = {memory_of(operand) for operand in node.all_input_nodes}
    lasts = {m: max((u for u in _users(m) if u is not node), default=m) for m in memories}
    ends = sorted((m for m in memories - {*kept} if lasts[m] < node), key=lasts.__getitem__)
    while ends and sum(map(_bytes, ends[:-1])) >= _bytes(node):  # the sooner for it
        ends.pop()
    if sum(map(_bytes, ends)) < _bytes(node):
        return
    place = max((*memories, *(lasts[memory] for memory in ends)))
    if place.op == "placeholder":
        place = graph.find_nodes(op="placeholder")[-1]
    views = [view for view in _views_of(node) if place < view]
    for moved in (*dict.fromkeys(reversed(views)), node):
        place.append(moved)
        place = moved


def _users(memory: fx.Node) -> Iterator[fx.Node]:
    """The calls that use it, or views of it."""
    names = [memory]
    while names:
        for user in names.pop().users:
            is_view = memory_of(user) is memory
            if is_view:
                names.append(user)
            if not is_view or written(user):
                yield user


def _views_of(node: fx.Node) -> Iterator[fx.Node]:
    """Those that a call takes, each before what it is made of."""
    for operand in node.all_input_nodes:
        while operand is not memory_of(operand):
            yield operand
            operand = operand.all_input_nodes[0]


def _bytes(node: fx.Node) -> int:
    values = pytree.tree_leaves(node.meta.get("val"))
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
