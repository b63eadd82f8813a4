"""Regions of a graph with another gradient mode or autocast are inlined.

Export makes higher-order calls of ``with torch.no_grad()`` and ``with
torch.autocast(...)``, each with a graph of its own.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import fx

from tensoropt_torch.frontend.passes.autocast import AutocastRegion
from tensoropt_torch.frontend.passes.cleanup import (
    complete_users,
    gives_its_operand,
    strip_assertions,
)
from tensoropt_torch.frontend.passes.nodes import (
    WITHOUT_GRAD,
    add_call,
    changes_memory,
    replace_results,
)
from tensoropt_torch.frontend.passes.out_arguments import make_out_calls_functional


class _Region(Protocol):
    def call(self, graph: fx.Graph, node: fx.Node) -> None:
        """Change a call of the region that was copied to ``graph``."""

    def result(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """What the rest of the graph sees of a result."""


class _GradRegion:
    """``torch.no_grad`` or ``torch.enable_grad``: the innermost one counts."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._calls: set[fx.Node] = set()

    def call(self, graph: fx.Graph, node: fx.Node) -> None:
        self._calls.add(node)
        if WITHOUT_GRAD not in node.meta and not self._enabled and changes_memory(node):
            # What it writes leaves the region by the memory, not as a result.
            with graph.inserting_before(node):
                for operand in node.all_input_nodes[1:]:
                    node.replace_input_with(operand, _detached(graph, operand))
        node.meta.setdefault(WITHOUT_GRAD, not self._enabled)

    def result(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        given = node
        while given in self._calls and gives_its_operand(given):
            given = given.args[0]  # type: ignore[assignment]
        if given not in self._calls:  # a tensor from outside, which keeps its gradient
            return given
        return node if self._enabled else _detached(graph, node)


def _detached(graph: fx.Graph, node: fx.Node) -> fx.Node:
    return add_call(graph, torch.ops.aten.detach.default, (node,), node)


def inline_regions(graph: fx.Graph) -> None:
    """Put the calls of regions into the graph, the inner regions first.

    What a region without gradient returns is detached, unless it is a tensor from outside
    of it (``x.to(dtype)`` of what has that dtype already); the casts that autocast implies
    become calls.
    """
    complete_users(graph)
    for node in list(graph.nodes):
        name = str(node.target)
        if name == "wrap_with_set_grad_enabled":
            enabled, *rest = node.args
            _inline(graph, node, _GradRegion(bool(enabled)), rest)
        elif name == "wrap_with_autocast":
            device, dtype, enabled, _, *rest = node.args
            _inline(graph, node, AutocastRegion(device, dtype, bool(enabled)), rest)


def _inline(graph: fx.Graph, node: fx.Node, region: _Region, rest: list[Any]) -> None:
    body, *arguments = rest
    assert graph.owning_module is not None
    module = graph.owning_module.get_submodule(str(body.target))
    assert isinstance(module, fx.GraphModule)
    module.graph.owning_module = module
    # Those of dtypes are wrong where autocast did nothing yet: on the meta device.
    strip_assertions(module.graph)
    make_out_calls_functional(module.graph)
    inline_regions(module.graph)
    replaced = dict(zip(module.graph.find_nodes(op="placeholder"), arguments, strict=True))
    with graph.inserting_before(node):
        results = _copy_body(graph, module.graph, replaced, region)
    replace_results(graph, node, results)
    if not body.users:  # in a region that is inlined in turn it would name nothing
        graph.erase_node(body)


def _copy_body(
    graph: fx.Graph, body: fx.Graph, replaced: dict[fx.Node, Any], region: _Region
) -> list[Any]:
    results: list[Any] = []
    for inner in body.nodes:
        if inner.op == "output":
            outputs = fx.map_arg(inner.args[0], lambda node: replaced[node])
            results = [
                region.result(graph, value) if isinstance(value, fx.Node) else value
                for value in outputs
            ]
        elif inner.op != "placeholder":
            copied = graph.node_copy(inner, lambda node: replaced[node])
            replaced[inner] = copied
            if copied.op == "call_function":
                region.call(graph, copied)
    return results
