"""Writes what a rank does as an ``fx.GraphModule`` that PyTorch runs operator by operator: ATen
calls at local shapes, and calls of this library between them, whose gradients autograd makes.

::

    graph = EagerWriter(program).emit()

It reads records and decides nothing: another writer is another file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import fx

from tensoropt_torch import _C
from tensoropt_torch.emit.hooked import GRADIENT_EDGE, GRADIENT_PROGRAM
from tensoropt_torch.emit.reshard_calls import HELD, SENT_BYTES
from tensoropt_torch.operators import OPS
from tensoropt_torch.program import records as r
from tensoropt_torch.program.edges import GradientEdge
from tensoropt_torch.program.passes import RankRecords
from tensoropt_torch.program.reshards import Program, dtypes, named, runs_again, value_dtype
from tensoropt_torch.runtime import reuse
from tensoropt_torch.runtime.agreement import confirm_call
from tensoropt_torch.runtime.parameter_queue import parameter_queue
from tensoropt_torch.runtime.random import agree_on_random_state, call_seeded
from tensoropt_torch.runtime.recomputation import recomputed, recomputed_beside, recomputed_draw


class EagerWriter:
    """Writes the graph of one rank, record by record."""

    def __init__(self, program: RankRecords) -> None:
        self.program = program
        self._graph = fx.Graph()
        self._nodes: dict[r.Value, fx.Node] = {}
        self._queue: fx.Node | None = None

    def emit(self) -> fx.GraphModule:
        """The module of the graph."""
        return fx.GraphModule(torch.nn.Module(), self.write(), "RankGraph")

    def write(self) -> fx.Graph:
        """The graph: takes what the inputs of the program are, in their order; returns its
        output."""
        for record in self.program.records:
            _WRITE[type(record)](self, record)
        self._graph.lint()
        return self._graph

    @property
    def uses_seeds(self) -> bool:
        """Whether steps need a seed."""
        return self.program.uses_seeds

    # --- Nodes

    def _node(self, value: r.Value) -> fx.Node:
        return self._nodes[value]

    def _all(self, values: Sequence[r.Value]) -> list[fx.Node]:
        return [self._nodes[value] for value in values]

    def _with_nodes(self, tree: Any) -> Any:
        return fx.node.map_aggregate(
            tree, lambda leaf: self._nodes[leaf] if isinstance(leaf, r.Value) else leaf
        )

    def _write(
        self,
        result: r.Value | None,
        function: Callable[..., Any],
        *args: Any,
        again: bool = False,
        moved: Sequence[r.Value] = (),
        **kwargs: Any,
    ) -> fx.Node:
        """A call with these arguments, of nodes; ``again``: in backward, too, with those of its
        operands that are ``moved`` since as they were."""
        if again and function is call_seeded:
            function = recomputed_draw
        elif again and moved:
            function, args = recomputed_beside, (tuple(self._all(moved)), function, *args)
        elif again:
            function, args = recomputed, (function, *args)
        node = self._graph.call_function(function, args, kwargs)
        if result is not None:
            self._nodes[result] = node
        return node

    def _items(self, results: Sequence[r.Value], node: fx.Node) -> None:
        for index, result in enumerate(results):
            self._write(result, getitem, node, index)

    # --- Reshards

    def _named(self, program: _C.EncodedProgram) -> Program:
        return named(program, self.program.group_name)

    def _both(self, programs: _C.EmittedReshard) -> tuple[Any, ...]:
        return *self._named(programs.forward), *self._named(programs.backward)

    def _mark_gradient(
        self, node: fx.Node, programs: _C.EmittedReshard, gradient: GradientEdge | None
    ) -> None:
        if gradient is not None:
            node.meta[GRADIENT_EDGE] = gradient
            node.meta[GRADIENT_PROGRAM] = self._named(programs.backward)

    def _mark_parameter(
        self, node: fx.Node, programs: _C.EmittedReshard, gradient: GradientEdge | None
    ) -> None:
        node.meta[HELD] = programs.held
        node.meta[SENT_BYTES] = programs.value_bytes if programs.backward.groups else 0.0
        self._mark_gradient(node, programs, gradient)

    # --- Records

    def input(self, record: r.Input) -> None:
        self._nodes[record.result] = self._graph.placeholder(record.name)

    def item(self, record: r.Item) -> None:
        self._write(record.result, record.function, self._node(record.source), record.index)

    def copy(self, record: r.Copy) -> None:
        self._write(record.result, torch.ops.aten.clone.default, self._node(record.source))

    def call(self, record: r.Call) -> None:
        args, kwargs = self._with_nodes((record.args, dict(record.kwargs)))
        again, moved = record.runs_again, record.moved
        self._write(record.result, record.function, *args, again=again, moved=moved, **kwargs)

    def scale(self, record: r.Scale) -> None:
        mul, source = torch.ops.aten.mul.Tensor, self._node(record.source)
        self._write(record.result, mul, source, record.factor, again=record.runs_again)

    def reshard(self, record: r.Reshard) -> None:
        programs, source = record.programs, self._node(record.source)
        call, again = (OPS.reshard.default, source, *self._both(programs)), runs_again(programs)
        node = self._write(record.result, *call, again=again, **dtypes(programs))
        self._mark_gradient(node, record.programs, record.gradient)

    def take_parameters(self, record: r.TakeParameters) -> None:
        sizes = record.bucket_bytes, record.shard_bytes
        self._queue = self._write(None, parameter_queue, *sizes)
        sources, slots = self._all(record.sources), list(range(len(record.sources)))
        awaited = self._write(None, OPS.await_gradients.default, sources, self._queue, slots)
        self._items(record.results, awaited)

    def reshard_gradients(self, record: r.ReshardGradients) -> None:
        first = record.programs[0]
        program = *self._named(first.backward), self._queue, list(record.slots)
        call = OPS.reshard_gradients.default, self._all(record.sources), *program
        self._items(record.results, self._write(None, *call, **dtypes(first)))
        members = zip(record.results, record.programs, record.gradients, strict=True)
        for result, programs, gradient in members:
            self._mark_parameter(self._node(result), programs, gradient)

    def reshard_parameter(self, record: r.ReshardParameter) -> None:
        programs, source = record.programs, self._node(record.source)
        call = OPS.reshard_parameter.default, source, *self._both(programs), self._queue
        node = self._write(record.result, *call, record.slot, **dtypes(programs))
        self._mark_parameter(node, programs, record.gradient)

    def begin_values(self, record: r.BeginValues) -> None:
        first, sources = record.programs[0], self._all(record.sources)
        casts = any(programs.casts for programs in record.programs)
        own: dict[str, Any] = {"dtype": value_dtype(first)} if casts else {}
        steps, groups = self._named(first.forward)
        if len(sources) == 1:
            program = steps, groups, self._queue, record.slots[0]
            self._write(None, OPS.begin_value.default, *sources, *program, **own)
            return
        (group,) = groups
        dims = [programs.gathered_dim for programs in record.programs]
        gathers = sources, dims, group, self._queue, [*record.slots]
        self._write(None, OPS.begin_gathers.default, *gathers, **own)

    def keep(self, record: r.Keep) -> None:
        programs = record.programs
        program = *self._named(programs.forward), dtypes(programs).get("dtype")
        place: dict[str, Any] = {}
        if record.bucket is not None:
            place = {"bucket": record.bucket, "gathered_dim": programs.gathered_dim}
        values = self._node(record.value), self._node(record.source)
        self._write(None, reuse.keep_before, *values, *program, **place)

    def exchange_halo(self, record: r.ExchangeHalo) -> None:
        call = OPS.halo_exchange.default, self._node(record.source), *record.borders, record.group
        self._write(record.result, *call, again=record.runs_again)

    def check_lookup(self, record: r.CheckLookup) -> None:
        source = self._node(record.source)
        self._write(None, OPS.check_lookup.default, source, *record.bounds, record.what)

    def bound_lookup(self, record: r.BoundLookup) -> None:
        source = self._node(record.source)
        bounded = self._write(None, OPS.bounded_lookup.default, source, *record.bounds)
        self._write(record.ranges, getitem, bounded, 1)
        self._write(record.result, getitem, bounded, 0)

    def count_out_of_range(self, record: r.CountOutOfRange) -> None:
        self._write(record.result, OPS.out_of_range.default, *self._ranges(record.ranges))

    def check_counts(self, record: r.CheckCounts) -> None:
        words = [*record.whats], record.group
        count = self._node(record.count)
        self._write(None, OPS.check_lookups.default, count, *self._ranges(record.ranges), *words)

    def _ranges(self, ranges: r.Ranges) -> tuple[list[fx.Node], list[int], list[int]]:
        return self._all(ranges.found), [*ranges.lows], [*ranges.highs]

    def reduce(self, record: r.Reduce) -> None:
        buffers, shares = record.buffers, self._all(record.shares)
        own = [*buffers.begins], [*buffers.lengths], [*buffers.ranks]
        values = shares, self._all(buffers.values)
        call = OPS.forward_sums.default, *values, *own, record.group
        self._items(record.results, self._write(None, *call))

    def sum_of(self, record: r.SumOf) -> None:
        operands = self._node(record.sum), self._node(record.share)
        self._write(record.result, OPS.sum_of.default, *operands, record.group)

    def agree_on_draws(self, record: r.AgreeOnDraws) -> None:
        self._write(None, agree_on_random_state, record.device)

    def confirm(self, record: r.Confirm) -> None:
        self._write(None, confirm_call)

    def output(self, record: r.Output) -> None:
        self._graph.output(self._with_nodes(record.values))


_WRITE: Mapping[type[r.Record], Callable[[EagerWriter, Any], None]] = {
    r.Input: EagerWriter.input,
    r.Item: EagerWriter.item,
    r.Copy: EagerWriter.copy,
    r.Call: EagerWriter.call,
    r.Scale: EagerWriter.scale,
    r.Reshard: EagerWriter.reshard,
    r.TakeParameters: EagerWriter.take_parameters,
    r.ReshardGradients: EagerWriter.reshard_gradients,
    r.ReshardParameter: EagerWriter.reshard_parameter,
    r.BeginValues: EagerWriter.begin_values,
    r.Keep: EagerWriter.keep,
    r.ExchangeHalo: EagerWriter.exchange_halo,
    r.CheckLookup: EagerWriter.check_lookup,
    r.BoundLookup: EagerWriter.bound_lookup,
    r.CountOutOfRange: EagerWriter.count_out_of_range,
    r.CheckCounts: EagerWriter.check_counts,
    r.Reduce: EagerWriter.reduce,
    r.SumOf: EagerWriter.sum_of,
    r.AgreeOnDraws: EagerWriter.agree_on_draws,
    r.Confirm: EagerWriter.confirm,
    r.Output: EagerWriter.output,
}
