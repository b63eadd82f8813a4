"""Calls of a recorded graph that go to queues and other ranks, in the form that takes the host
least: programs have numbers in place of lists, and gradients begin and end in as few calls as
leave all collectives where they are.

::

    for node in graph.nodes:                     # while it is recorded
        node.meta[STARTS] = ...
    join_queue_calls(graph)

A gradient that is put into a queue without a collective begins nothing that other ranks see. So it
waits here for the next one of which a collective starts, or for the end of backward, and is put
there right before: the queue gets the same gradients in the same order, and starts the same
collectives at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

from torch import fx

from tensoropt_torch.operators import OPS

STARTS = "starts"  # in the meta of a call that begins a gradient: whether a collective starts
_BEGIN = OPS.begin_gradient.default
_TAKE = OPS.take_gradients.default


def counted() -> Sequence[int]:
    """What this process has run of collectives and programs: another one after a call that has
    started something."""
    counts: Sequence[int] = OPS.collective_counts()
    return counts


def join_queue_calls(graph: fx.Graph) -> None:
    """Puts others in place of such calls."""
    _join_begins(graph)
    _join_takes(graph)
    for node in graph.find_nodes(op="call_function", target=OPS.reshard.default):
        _name_program(node)


def _join_begins(graph: fx.Graph) -> None:
    waiting: list[fx.Node] = []
    for node in [*graph.nodes]:
        if node.target is _TAKE or (node.target is _BEGIN and _others(waiting, node)):
            _begin_all(graph, waiting, node)
            waiting = []
        if node.target is _BEGIN:
            waiting.append(node)
            if node.meta[STARTS]:
                _begin_all(graph, waiting, node)
                waiting = []
    assert not waiting, "a gradient that was begun is not awaited"


def _others(waiting: Sequence[fx.Node], node: fx.Node) -> bool:
    return bool(waiting) and waiting[0].args[3] is not node.args[3]


def _begin_all(graph: fx.Graph, nodes: Sequence[fx.Node], place: fx.Node) -> None:
    """In one call before this node."""
    if not nodes:
        return
    gradients, steps, groups, queues, slots = zip(*(node.args for node in nodes), strict=True)
    programs = [OPS.program(*own) for own in zip(steps, groups, strict=True)]
    with graph.inserting_before(place):
        arguments: Any = [*gradients], queues[0], [*slots], programs
        call = graph.call_function(OPS.begin_gradients.default, arguments)
    call.meta = {key: value for key, value in place.meta.items() if key != STARTS}
    for node in nodes:
        graph.erase_node(node)


def _join_takes(graph: fx.Graph) -> None:
    """Where several follow each other."""
    first: fx.Node | None = None
    for node in [*graph.nodes]:
        if node.target is not _TAKE:
            if node.op == "call_function" and node.target is not getitem:
                first = None
            continue
        if first is None or first.args[0] is not node.args[0]:
            first = node
            continue
        taken, more = first.args[1], node.args[1]
        assert isinstance(taken, Sequence) and isinstance(more, Sequence)
        first.args = (first.args[0], [*taken, *more])
        for item in [*node.users]:
            item.args = (first, len(taken) + item.args[1])
        graph.erase_node(node)


def _name_program(node: fx.Node) -> None:
    x, steps, groups, *_ = node.args
    if steps:
        node.target = OPS.run_program.default
        node.args = x, OPS.program(steps, groups), node.kwargs.get("dtype")
        node.kwargs = {}
