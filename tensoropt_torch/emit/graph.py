"""The per-rank ``fx.GraphModule`` of a plan: ATen calls at local shapes, and
reshard calls between them. Which reshards and which local arguments these are
comes from C++ (``RankProgram``); nothing here knows an operator by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.emit.overlap import Overlap, Programs
from tensoropt_torch.emit.whole_draws import WholeDraws
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.frontend.lowering import named_arguments, tensor_operands
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.random import agree_on_random_state, call_seeded

STEP_SEED = "step_seed"

_Operand = TypeVar("_Operand")


@dataclass(frozen=True)
class EdgeIndex:
    """Where in the strategy space the reshards of a graph are found."""

    relay: dict[int, int]  # value -> edge into its relay
    operand: dict[tuple[int, int], int]  # (graph node, operand) -> edge
    first: dict[int, int]  # value -> edge from its producer, one of them

    @staticmethod
    def of(planner: _C.Planner) -> EdgeIndex:
        relay: dict[int, int] = {}
        operand: dict[tuple[int, int], int] = {}
        first: dict[int, int] = {}
        for edge, (value, node, port) in enumerate(planner.edges()):
            first.setdefault(value, edge)
            if node < 0:
                relay[value] = edge
            else:
                operand[node, port] = edge
        return EdgeIndex(relay, operand, first)


def axis_sets(program: _C.RankProgram, planner: _C.Planner, captured: CapturedModel) -> list[int]:
    """The axis sets whose process groups the rank program needs, ascending."""
    sets: set[int] = set()
    for edge in range(len(planner.edges())):
        _, forward, _, backward, _ = program.reshard(edge)
        sets.update(forward, backward)
    for node, graph_node in captured.lowering.nodes.items():
        if node.op == "call_function":
            call = program.call(graph_node)
            sets.update(call["groups"], (axes for *_, axes in call["halos"]))
    return sorted(sets - {0})


class GraphEmitter:
    """Writes the graph of one rank, node by node, in the captured order."""

    def __init__(
        self,
        captured: CapturedModel,
        planner: _C.Planner,
        program: _C.RankProgram,
        group_name: Callable[[int], str],
        device: torch.device,
        draws: WholeDraws | None = None,
        *,
        overlap: bool = False,
    ) -> None:
        self._captured = captured
        self._draws = draws
        self._program = program
        self._edges = EdgeIndex.of(planner)
        self._group_name = group_name
        self._device = device
        self._graph = fx.Graph()
        self._overlap = Overlap(self._graph)
        self._overlaps = overlap
        self._values: dict[int, fx.Node] = {}
        self._tuples: dict[fx.Node, fx.Node] = {}
        self._known = frozenset(captured.lowering.rules.targets())
        self._random_calls = 0
        self._checks_draws = False
        self._step_seed: fx.Node | None = None

    def emit(self) -> fx.GraphModule:
        """The module: takes local parameters, constants and inputs in the order
        of the captured sources, then the step seed; returns the outputs."""
        old = self._captured.graph_module.graph
        placeholders = {
            source.placeholder: self._graph.placeholder(source.placeholder.name)
            for source in self._captured.sources
        }
        self._step_seed = self._graph.placeholder(STEP_SEED)
        if self._overlaps:
            self._begin_overlap(placeholders)
        for source in self._captured.sources:
            if source.kind != "literal":
                self._define(source.placeholder, 0, placeholders[source.placeholder])
        for node in old.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)
        self._graph.lint()
        return fx.GraphModule(torch.nn.Module(), self._graph, "RankGraph")

    @property
    def uses_seeds(self) -> bool:
        """Whether steps need a seed."""
        return self._random_calls > 0

    def _define(self, old: fx.Node, index: int, new: fx.Node) -> None:
        """Record a value, in the layout in which its consumers look for it."""
        value = self._captured.lowering.values[old][index]
        edge = self._edges.relay.get(value)
        self._values[value] = new if edge is None else self._reshard(new, edge)

    def _begin_overlap(self, placeholders: dict[fx.Node, fx.Node]) -> None:
        """Of parameters that communicate. Each has one edge, to its consumer or relay."""
        first_edges = {}
        for source in self._captured.parameters:
            value = self._captured.lowering.values[source.placeholder][0]
            edge = self._edges.first.get(value)
            if edge is not None and self._programs(edge).communicates:
                first_edges[edge] = source.placeholder
        begun = self._overlap.begin({e: placeholders[p] for e, p in first_edges.items()})
        placeholders |= {first_edges[edge]: node for edge, node in begun.items()}

    def _programs(self, edge: int) -> Programs:
        forward, forward_sets, backward, backward_sets, kept = self._program.reshard(edge)
        return Programs(
            list(forward),
            [self._group_name(axes) for axes in forward_sets],
            list(backward),
            [self._group_name(axes) for axes in backward_sets],
            kept,
        )

    def _reshard(self, node: fx.Node, edge: int) -> fx.Node:
        programs = self._programs(edge)
        if not programs.forward and not programs.backward:
            return node
        if edge in self._overlap:
            result = self._overlap.reshard(node, edge, programs)
        else:
            result = self._graph.call_function(
                torch.ops.tensoropt.reshard.default, (node, *programs.arguments)
            )
        if programs.kept == "before" and programs.forward:
            self._graph.call_function(
                reuse.keep_before, (result, node, programs.forward, programs.forward_groups)
            )
        return result

    def _call(self, node: fx.Node) -> None:
        lowering = self._captured.lowering
        if not isinstance(node.target, OpOverload):  # getitem
            source, index = node.args
            assert isinstance(source, fx.Node) and callable(node.target)
            new = self._graph.call_function(node.target, (self._tuples[source], index))
            self._define(node, 0, new)
            return
        graph_node = lowering.nodes[node]
        call = self._program.call(graph_node)
        operands = self._operands(node, graph_node)
        for dim, low, high, fill, axes in call["halos"]:
            operands[0] = self._graph.call_function(
                torch.ops.tensoropt.halo_exchange.default,
                (operands[0], dim, low, high, fill, self._group_name(axes)),
            )
        new = self._local_call(node, node.target, call, operands)
        if isinstance(node.meta["val"], (tuple, list)):
            self._tuples[node] = new
        else:
            self._define(node, 0, new)

    def _operands(self, node: fx.Node, graph_node: int) -> list[fx.Node]:
        operands = []
        for port, operand in enumerate(tensor_operands(node)):
            value = self._captured.lowering.values[operand][0]
            edge = self._edges.operand[graph_node, port]
            operands.append(self._reshard(self._values[value], edge))
        return operands

    def _local_call(
        self, node: fx.Node, target: OpOverload, call: dict[str, Any], operands: list[fx.Node]
    ) -> fx.Node:
        if call["target"]:
            names = [self._group_name(axes) if axes else "" for axes in call["groups"]]
            tensors = target_operands(node, call["operands"], operands)
            new = self._graph.call_function(
                operator_named(call["target"]), (*tensors, *call["extra"], *names)
            )
        elif call["random"] or self._is_unknown_random(target):
            new = self._random_call(node, target, call, operands)
        else:
            args, kwargs = local_arguments(node, call["arguments"], operands, self._device)
            new = self._graph.call_function(target, args, kwargs)
        if call["scale"] != 1.0:
            new = self._graph.call_function(torch.ops.aten.mul.Tensor, (new, call["scale"]))
        return new

    def _random_call(
        self, node: fx.Node, target: OpOverload, call: dict[str, Any], operands: list[fx.Node]
    ) -> fx.Node:
        if self._draws is not None:
            return self._whole_call(node, target, operands, self._draws)
        args, kwargs = local_arguments(node, call["arguments"], operands, self._device)
        stream = (self._random_calls, call["shard_index"])
        self._random_calls += 1
        seeded = (target, self._step_seed, stream, *args)
        return self._graph.call_function(call_seeded, seeded, kwargs)

    def _whole_call(
        self, node: fx.Node, target: OpOverload, operands: list[fx.Node], draws: WholeDraws
    ) -> fx.Node:
        """The call of one process, from which this rank's part is taken."""
        if not self._checks_draws:
            self._graph.call_function(agree_on_random_state, (self._device,))
            self._checks_draws = True
        graph_node = self._captured.lowering.nodes[node]
        wholes = draws.embed(self._graph, operands, tensor_operands(node), graph_node)
        args, kwargs = local_arguments(node, {}, wholes, self._device)
        new = self._graph.call_function(target, args, kwargs)
        return draws.take(self._graph, new, node.meta["val"], graph_node)

    def _is_unknown_random(self, target: OpOverload) -> bool:
        """A random operator without a rule: all ranks draw the same."""
        return torch.Tag.nondeterministic_seeded in target.tags and str(target) not in self._known

    def _output(self, node: fx.Node) -> None:
        graph_node = self._captured.lowering.nodes[node]
        ports = iter(range(len(node.all_input_nodes)))
        seen: dict[fx.Node, fx.Node] = {}

        def emitted(old: fx.Node) -> fx.Node:
            if old not in seen:
                value = self._captured.lowering.values[old][0]
                edge = self._edges.operand[graph_node, next(ports)]
                seen[old] = self._reshard(self._values[value], edge)
            return seen[old]

        self._graph.output(fx.map_arg(node.args[0], emitted))


def local_arguments(
    node: fx.Node,
    replaced: Mapping[str, Any],
    operands: Sequence[_Operand],
    device: torch.device,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the call of ``node`` on one rank: its operands there, literals
    replaced by name, and everything made on ``device``."""
    assert isinstance(node.target, OpOverload)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    keywords = {argument.name for argument in node.target._schema.arguments if argument.kwarg_only}
    rest = iter(operands)
    for name, value in named_arguments(node):
        value = _with_operands(replaced.get(name, value), rest)
        if isinstance(value, torch.device):
            value = device
        if name in keywords:
            kwargs[name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _with_operands(value: Any, operands: Iterator[_Operand]) -> Any:
    """The argument with the next operands in place of its nodes."""
    if isinstance(value, fx.Node):
        return next(operands)
    if isinstance(value, (list, tuple)):
        return type(value)([_with_operands(item, operands) for item in value])
    return value


def target_operands(
    node: fx.Node, names: Sequence[str], operands: Sequence[_Operand]
) -> list[_Operand | None]:
    """The tensors for another target: those of the arguments ``names``, None where
    the call has none; all operands if there are no names."""
    if not names:
        return list(operands)
    rest = iter(operands)
    by_name = {
        name: next(rest) for name, value in named_arguments(node) if isinstance(value, fx.Node)
    }
    return [by_name.get(name) for name in names]


def operator_named(name: str) -> OpOverload:
    """``tensoropt.reshard.default`` -> the operator."""
    result: Any = torch.ops
    for part in name.split("."):
        result = getattr(result, part)
    assert isinstance(result, OpOverload)
    return result
