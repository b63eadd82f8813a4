"""The per-rank ``fx.GraphModule`` of a plan: ATen calls at local shapes, and
reshard calls between them. Which reshards and which local arguments these are
comes from C++ (``RankProgram``); nothing here knows an operator by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.emit.averaged_buffers import BufferAverages
from tensoropt_torch.emit.confirmation import Confirmation
from tensoropt_torch.emit.edges import EdgeIndex, gradient_edges
from tensoropt_torch.emit.forward_sums import ForwardSums
from tensoropt_torch.emit.hooked import GRADIENT_EDGE, GRADIENT_PROGRAM
from tensoropt_torch.emit.in_place import InPlaceCalls
from tensoropt_torch.emit.kept_buffers import KeptBuffers
from tensoropt_torch.emit.local_calls import CallSite, Invocation, draws, invocation
from tensoropt_torch.emit.lookups import LookupChecks
from tensoropt_torch.emit.moved_buffers import MovedBuffers
from tensoropt_torch.emit.number_inputs import NumberInputs
from tensoropt_torch.emit.overlap import Overlap, Programs
from tensoropt_torch.emit.whole_draws import WholeDraws
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.frontend.lowering import tensor_operands
from tensoropt_torch.plan.local_form import LocalForm, local_arguments
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.random import agree_on_random_state

STEP_SEED = "step_seed"


class GraphEmitter:
    """Writes the graph of one rank, node by node, in the captured order. Random operators
    draw what one process draws where ``whole_draws`` says which part of it is the rank's.
    ``averaged`` are the sizes of the mesh axes, and those whose ranks average buffers."""

    def __init__(
        self,
        captured: CapturedModel,
        planner: _C.Planner,
        program: _C.RankProgram,
        site: CallSite,
        *,
        averaged: tuple[Sequence[int], int],
        whole_draws: WholeDraws | None = None,
        overlap: bool = False,
        bucket_bytes: int = 0,
        shard_bytes: int = 0,
    ) -> None:
        self._captured = captured
        self._whole_draws = whole_draws
        self._program = program
        self._edges = EdgeIndex.of(planner)
        self._gradient_edges = gradient_edges(captured, self._edges, program)
        self._confirmation = Confirmation(site.group_name)
        self._site = replace(site, group_name=self._confirmation.group_name)
        self._graph = fx.Graph()
        self._overlap = Overlap(self._graph, overlap, bucket_bytes, shard_bytes)
        self._overlaps = overlap
        self._lookups = LookupChecks(self._graph)
        self._averages = BufferAverages(self._graph, *averaged, self._site.group_name)
        self._sums = ForwardSums(self._graph)
        self._in_place = InPlaceCalls()
        self._kept = KeptBuffers(captured.graph_module.graph)
        self._moved = MovedBuffers(captured)
        self._values: dict[_C.ValueId, fx.Node] = {}
        self._tuples: dict[fx.Node, fx.Node] = {}
        self._known = frozenset(captured.lowering.rules.targets())
        self._copies = frozenset(planner.parameter_copies())
        self._random_calls = 0
        self._checks_draws = False

    def emit(self) -> fx.GraphModule:
        """The module: takes local parameters, constants and inputs in the order
        of the captured sources, then the step seed; returns the outputs."""
        old = self._captured.graph_module.graph
        placeholders = {
            source.placeholder: self._graph.placeholder(source.placeholder.name)
            for source in self._captured.sources
        }
        step_seed = self._graph.placeholder(STEP_SEED)
        self._numbers = NumberInputs(self._graph, self._captured.numbers)
        self._site = replace(self._site, step_seed=step_seed)
        self._kept.begin(placeholders, self._graph)
        self._moved.begin(placeholders)
        self._begin_queue(placeholders)
        for source in self._captured.sources:
            if source.kind != "literal":
                self._define(source.placeholder, 0, placeholders[source.placeholder])
        for node in old.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._output(node)
        self._overlap.finish()
        self._confirmation.write(self._graph)
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

    def _begin_queue(self, placeholders: dict[fx.Node, fx.Node]) -> None:
        """Of parameters whose reshards, where they first are resharded, wait in it."""
        first_edges: dict[_C.SpaceEdgeId, fx.Node] = {}
        for source in self._captured.parameters:
            edges = self._first_edges(source.placeholder)
            edge = next((e for e in edges if self._programs(e).is_reshard), None)
            if edge is not None and self._programs(edge).waits_in_queue(self._overlaps):
                first_edges[edge] = source.placeholder
        parameters = {edge: placeholders[p] for edge, p in first_edges.items()}
        begun = self._overlap.begin(parameters, {e: self._programs(e) for e in first_edges})
        placeholders |= {first_edges[edge]: node for edge, node in begun.items()}

    def _first_edges(self, placeholder: fx.Node) -> Iterator[_C.SpaceEdgeId]:
        """Of a parameter, and of the copy that it is cast to if it has no other use."""
        nodes = [placeholder]
        graph_nodes = self._captured.lowering.nodes
        if len(placeholder.users) == 1:
            nodes += [u for u in placeholder.users if graph_nodes.get(u) in self._copies]
        for node in nodes:
            edge = self._edges.first.get(self._captured.lowering.values[node][0])
            if edge is not None:
                yield edge

    def _programs(self, edge: _C.SpaceEdgeId) -> Programs:
        reshard = self._program.reshard(edge)
        dtype, reduce_dtype = (getattr(torch, d) for d in (reshard.dtype, reshard.reduce_dtype))
        return Programs(
            reshard.forward.steps,
            [self._site.group_name(axes) for axes in reshard.forward.groups],
            reshard.backward.steps,
            [self._site.group_name(axes) for axes in reshard.backward.groups],
            reshard.saved,
            dtype if reshard.casts else None,
            reduce_dtype if reduce_dtype != dtype else None,
            is_bucketed=reshard.is_bucketed,
            gathered_dim=reshard.gathered_dim,
            value_dtype=dtype,
            value_bytes=reshard.value_bytes,
            recomputes_source=reshard.source_saved == _C.Saved.REMADE,
            held=reshard.held,
        )

    def _reshard(self, node: fx.Node, edge: _C.SpaceEdgeId) -> fx.Node:
        programs = self._programs(edge)
        if not programs.is_reshard:
            if programs.dtype is None:
                return node
            cast = torch.ops.aten._to_copy.default
            return self._graph.call_function(cast, (node,), {"dtype": programs.dtype})
        replays = programs.saved == _C.Saved.REMADE and bool(programs.forward)
        runs_again = replays and programs.recomputes_source
        if edge in self._overlap:
            result = self._overlap.reshard(node, edge, programs)
        else:
            target = torch.ops.tensoropt.reshard.default
            call = Invocation(target, (node, *programs.arguments), programs.dtypes)
            result = call.write(self._graph, runs_again)
        if edge in self._gradient_edges:
            result.meta[GRADIENT_EDGE] = self._gradient_edges[edge]
            result.meta[GRADIENT_PROGRAM] = programs.backward, programs.backward_groups
        is_moved = self._moved.part(node, result, programs.forward)
        if is_moved or (replays and not runs_again):
            source = (node, programs.forward, programs.forward_groups, programs.dtype)
            self._graph.call_function(reuse.keep_before, (result, *source))
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
        form = LocalForm.of(self._program.call(graph_node))
        self._averages.before(tensor_operands(node), form.averaged)
        operands = self._kept.target(node, self._operands(node, graph_node))
        for halo in form.halos:
            target = torch.ops.tensoropt.halo_exchange.default
            borders = (halo.dim, halo.low, halo.high, halo.fill)
            group = self._site.group_name(halo.axes)
            exchange = Invocation(target, (operands[0], *borders, group))
            operands[0] = exchange.write(self._graph, form.runs_again)
        for lookup in form.lookups:
            what = f"op '{node.name}' ({node.target})"
            checked = self._lookups.check(operands[lookup.operand], lookup, what)
            operands[lookup.operand] = checked
        if graph_node in self._copies:
            (new,) = operands  # the cast is part of the reshard that follows
        else:
            new = self._local_call(node, form, operands)
        self._averages.after(tensor_operands(node), operands, form)
        if isinstance(node.meta["val"], (tuple, list)):
            self._tuples[node] = new
        else:
            self._define(node, 0, new)

    def _operands(self, node: fx.Node, graph_node: _C.NodeId) -> list[fx.Node]:
        operands = []
        for port, operand in enumerate(tensor_operands(node)):
            value = self._captured.lowering.values[operand][0]
            edge = self._edges.operand[graph_node, port]
            operands.append(self._reshard(self._values[value], edge))
        return operands

    def _local_call(self, node: fx.Node, form: LocalForm, operands: list[fx.Node]) -> fx.Node:
        is_random = draws(node, form, self._known)
        if is_random and self._whole_draws is not None:
            new = self._whole_call(node, operands, self._whole_draws)
        else:
            number = self._random_calls if is_random else None
            self._random_calls += is_random
            call = invocation(node, form, operands, self._site, number)
            call = self._numbers.of(call)
            call = self._in_place.of(node, operands, form, call)
            new = call.write(self._graph, form.runs_again, self._moved.among(operands))
            self._in_place.written(node, new, form)
            self._moved.called(operands, call.function, new)
        if form.scale != 1.0:
            scaled = Invocation(torch.ops.aten.mul.Tensor, (new, form.scale))
            new = scaled.write(self._graph, form.runs_again)
        return new

    def _whole_call(
        self, node: fx.Node, operands: list[fx.Node], whole_draws: WholeDraws
    ) -> fx.Node:
        """The call of one process, from which this rank's part is taken."""
        if not self._checks_draws:
            self._graph.call_function(agree_on_random_state, (self._site.device,))
            self._checks_draws = True
        graph_node = self._captured.lowering.nodes[node]
        wholes = whole_draws.embed(
            self._graph, operands, tensor_operands(node), graph_node, node.target
        )
        args, kwargs = local_arguments(node, {}, wholes, self._site.device)
        assert callable(node.target)
        new = self._graph.call_function(node.target, args, kwargs)
        return whole_draws.take(self._graph, new, node.meta["val"], graph_node)

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

        self._averages.before(node.all_input_nodes)
        outputs = fx.map_arg(node.args[0], emitted)
        for old, new in seen.items():
            self._sums.add_loss(new, old.meta["val"])
        if self._site.device.type == "cpu":  # others assert
            self._lookups.add_to(self._sums, self._site.group_name)
        self._averages.add_to(self._sums)
        self._sums.write()
        losses = self._sums.outputs
        self._graph.output(fx.map_arg(outputs, lambda output: losses.get(output, output)))
