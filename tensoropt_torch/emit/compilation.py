"""``torch.compile`` of what a rank computes between the steps that reach beyond it.

The graph of a rank is cut into parts. Compiled, each as one graph without breaks, are runs of
operators that compute from tensors alone. In between, as they are written, stay

- what communicates: reshards, and operators that have a collective inside;
- calls of the user's Python: ``autograd.Function`` and hooks;
- what lives by hooks or queues: programs of parameters and their gradients, tensor reuse,
  calls that run again, checks of what is looked up, the confirmation of the call;
- random operators other than dropout, and operators whose shapes depend on values.

A part ends as well when the gradients that its backward sends are many bytes, so that they are
under way while the parts before it go backward, as buckets of DistributedDataParallel are.

They keep their order. So ranks meet in the same collectives in the same order whatever the
compiler makes of the parts between, which may differ in shape from rank to rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from tensoropt_torch.emit.compiler import INDUCTOR, CompileOptions
from tensoropt_torch.emit.reshard_calls import (
    FORWARD_GROUPS,
    SENT_BYTES,
    slot_of,
    slots_begun,
)
from tensoropt_torch.emit.traced import TRACED
from tensoropt_torch.frontend.passes import gives_views
from tensoropt_torch.frontend.python_calls import is_python_call
from tensoropt_torch.logs import get_logger
from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.parameter_queue import parameter_queue
from tensoropt_torch.runtime.random import call_seeded, seed_tensor, seeded_dropout
from tensoropt_torch.runtime.recomputation import recomputed, recomputed_beside, recomputed_draw
from tensoropt_torch.units import format_duration

log = get_logger(__name__)

Together = Callable[[Callable[[], Any]], Any]  # runs it on all, and fails on all, if on any

LEAST_OPERATORS = 2  # of a part; one alone is a kernel already
GRADIENT_BYTES = 25 * 2**20  # of a part, as in DistributedDataParallel

# What nobody outside of the rank sees, so that it may come before what is computed meanwhile.
_LOCAL = frozenset(
    {
        parameter_queue,
        reuse.keep_before,
        getitem,
        OPS.await_gradients.default,
        OPS.reshard_gradients.default,
        OPS.bounded_lookup.default,
        OPS.out_of_range.default,
        OPS.check_lookup.default,
    }
)


class CompiledPart(nn.Module):
    """Some operators of a rank's graph, compiled when they first run.

    That is collective: whatever the compiler meets on one rank is an error on all that run the
    graph, as ``together`` sees to it.
    """

    def __init__(self, graph: fx.GraphModule, options: CompileOptions, together: Together) -> None:
        super().__init__()
        self._together = together
        mode = options.mode if options.backend == INDUCTOR else None
        self._compiled = torch.compile(
            graph.forward, backend=options.backend, mode=mode, fullgraph=True, dynamic=False
        )
        self.num_operators = sum(_computes(node) for node in graph.graph.nodes)
        self._seen: set[bool] = set()  # with gradients, without

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """What later nodes take, in their order."""
        gradients = torch.is_grad_enabled()
        if gradients in self._seen:
            outputs: tuple[Any, ...] = self._compiled(*inputs)
            return outputs
        begin = time.perf_counter()
        outputs = self._together(lambda: self._first_run(inputs))
        self._seen.add(gradients)
        duration = format_duration(time.perf_counter() - begin)
        log.info("compiled %d operators in %s", self.num_operators, duration)
        return outputs

    def _first_run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        # Backward as well, so that it is not one rank alone which fails later.
        with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
            outputs: tuple[Any, ...] = self._compiled(*inputs)
        return outputs


def compiled(
    rank_graph: fx.GraphModule, options: CompileOptions, together: Together = on_all_ranks
) -> fx.GraphModule:
    """The graph of a rank with its parts compiled, ``together`` with all ranks that run it; nodes
    that stay keep what ``meta`` says."""
    return _Cutter(rank_graph, options, together).cut()


def compiled_parts(rank_graph: fx.GraphModule) -> list[CompiledPart]:
    """The parts of a graph, in their order."""
    return [module for module in rank_graph.modules() if isinstance(module, CompiledPart)]


def describe(rank_graph: fx.GraphModule) -> str:
    """How much of a graph is compiled, in words."""
    parts = compiled_parts(rank_graph)
    inside = sum(part.num_operators for part in parts)
    outside = sum(_computes(node) for node in rank_graph.graph.nodes)
    where = "one part" if len(parts) == 1 else f"{len(parts)} parts"
    return f"{inside} of {inside + outside} operators, in {where}"


@dataclass
class _Cutter:
    """Copies a graph in its order, but for what is in the part that is open."""

    old: fx.GraphModule
    options: CompileOptions
    together: Together
    _graph: fx.Graph = field(default_factory=fx.Graph)
    _root: nn.Module = field(default_factory=nn.Module)
    _nodes: dict[fx.Node, fx.Node] = field(default_factory=dict)  # those that were copied
    _part: dict[fx.Node, None] = field(default_factory=dict)  # those that wait, in order
    _sent: dict[fx.Node, float] = field(default_factory=dict)  # bytes, by parameter of these
    _together: dict[int, set[int]] = field(default_factory=dict)  # slots that began as one, by slot
    _arrived: set[int] = field(default_factory=set)  # slots for which nobody waits any more
    _seed: fx.Node | None = None
    _count: int = 0

    def cut(self) -> fx.GraphModule:
        for node in self.old.graph.nodes:
            if node.op == "placeholder":
                self._copy(node)
            elif node.op == "call_function" and _is_compiled(node) and not self._serves(node):
                self._part[node] = None
                self._sent |= {
                    source: source.meta[SENT_BYTES]
                    for source in node.all_input_nodes
                    if SENT_BYTES in source.meta
                }
                if sum(self._sent.values()) >= GRADIENT_BYTES:
                    self._close()
            elif node.op == "call_function" and self._may_go_ahead(node):
                self._copy(node)
            else:
                self._close()
                self._copy(node)
        self._graph.lint()
        return fx.GraphModule(self._root, self._graph, "CompiledRankGraph")

    def _copy(self, node: fx.Node) -> None:
        begun = slots_begun(node)
        self._together |= dict.fromkeys(begun, begun)
        if node.target is OPS.reshard_parameter.default:
            self._arrived |= self._together.get(slot_of(node), set())
        self._nodes[node] = self._graph.node_copy(node, self._nodes.__getitem__)

    def _is_there(self, node: fx.Node) -> bool:
        return not any(source in self._part for source in node.all_input_nodes)

    def _serves(self, node: fx.Node) -> bool:
        """Whether it is a view of what is there, for somebody who is not compiled."""
        if not self._is_there(node):
            return False
        if node.target is getitem:
            return True
        return _is_view(node) and any(not _is_compiled(user) for user in node.users)

    def _may_go_ahead(self, node: fx.Node) -> bool:
        if not self._is_there(node):
            return False
        if node.target is OPS.reshard_parameter.default:
            return not node.args[FORWARD_GROUPS] or slot_of(node) in self._arrived
        return node.target in _LOCAL

    def _close(self) -> None:
        """Writes what waits, compiled if that is worth it."""
        part, self._part = list(self._part), {}
        self._sent = {}
        if sum(_computes(node) for node in part) < LEAST_OPERATORS:
            for node in part:
                self._copy(node)
            return
        inputs = _inputs_of(part)
        inside = set(part)
        outputs = [node for node in part if not inside.issuperset(node.users)]
        name = f"part{self._count}"
        self._count += 1
        given = [self._given(node) for node in inputs]
        draws = any(node.target is call_seeded for node in part)
        module = _written(part, inputs, outputs, self._step_seed() if draws else None)
        self._root.add_module(name, CompiledPart(module, self.options, self.together))
        call = self._graph.call_module(name, tuple(given))
        for index, node in enumerate(outputs):
            self._nodes[node] = self._graph.call_function(getitem, (call, index))

    def _given(self, node: fx.Node) -> fx.Node:
        """What a part gets: the seed of the step as a tensor, so that it is no constant."""
        if node is not self._step_seed():
            return self._nodes[node]
        if self._seed is None:
            self._seed = self._graph.call_function(seed_tensor, (self._nodes[node],))
        return self._seed

    def _step_seed(self) -> fx.Node:
        last: fx.Node = self.old.graph.find_nodes(op="placeholder")[-1]
        return last


def _written(
    part: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    step_seed: fx.Node | None,
) -> fx.GraphModule:
    graph = fx.Graph()
    nodes = {node: graph.placeholder(node.name) for node in inputs}
    for node in part:
        nodes[node] = graph.node_copy(node, nodes.__getitem__)
        if node.target is call_seeded:
            assert step_seed is not None
            _, _, stream, x, *rest = node.args
            assert isinstance(x, fx.Node)
            nodes[node].target = seeded_dropout
            nodes[node].args = (nodes[x], *rest, nodes[step_seed], stream)
    graph.output(tuple(nodes[node] for node in outputs))
    graph.lint()
    return fx.GraphModule(nn.Module(), graph, "Part")


def _inputs_of(part: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(part)
    found = {source: None for node in part for source in node.all_input_nodes}
    return [node for node in found if node not in inside]


def _is_compiled(node: fx.Node) -> bool:
    """Whether the compiler may have it."""
    if node.target is call_seeded:
        return node.args[0] is torch.ops.aten.dropout.default
    return is_local(node)


def is_local(node: fx.Node) -> bool:
    """Whether a call computes from tensors alone, by operators of this rank."""
    target = node.target
    if target is call_seeded:
        return isinstance(node.args[0], OpOverload)
    if not isinstance(target, OpOverload):
        return target is getitem
    if target.namespace != "tensoropt":
        return not is_python_call(node)
    return target in TRACED and not any(_groups_of(node))


def _groups_of(node: fx.Node) -> Iterator[str]:
    assert isinstance(node.target, OpOverload)
    for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
        if argument.name.endswith("group"):
            yield value  # type: ignore[misc]


def _is_view(node: fx.Node) -> bool:
    return node.target is getitem or gives_views(node.target)


def _computes(node: fx.Node) -> bool:
    """Whether it is an operator that makes something new."""
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.returns) and not _is_view(node)
    again = (recomputed, recomputed_beside, recomputed_draw)
    return node.target in (call_seeded, seeded_dropout, *again)
