"""Writes the graph of a micro-batch, of that of the batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from tensoropt_torch.batches.lowered import lowered
from tensoropt_torch.batches.refusals import refusal
from tensoropt_torch.batches.value_rows import PENDING, WHOLE, Layouts, SplitRows
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.frontend.lowering import operator_name, tensor_operands
from tensoropt_torch.frontend.micro_batching import Join, MicroBatching
from tensoropt_torch.frontend.passes.known_results import KnownResults
from tensoropt_torch.frontend.passes.nodes import FOLDED, value_of
from tensoropt_torch.space.local_form import local_arguments, operator_named, target_operands

aten = torch.ops.aten


def _join(layout: str) -> Join:
    if layout == PENDING:
        return "sum"
    return "same" if layout == WHOLE else int(layout.removeprefix("S"))


@dataclass
class _Totals:
    """Values of the whole graph that micro-batches get, and where."""

    placeholders: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def of(self, node: fx.Node, graph: fx.Graph) -> fx.Node:
        """In the graph of a micro-batch, before all that computes."""
        if node not in self.placeholders:
            last = [n for n in graph.nodes if n.op == "placeholder"][-1]
            with graph.inserting_after(last):
                new = graph.placeholder(f"total_{node.name}")
            new.meta = {**node.meta, "val": value_of(node)}
            self.placeholders[node] = new
        return self.placeholders[node]


class MicroBatchWriter:
    """Writes the graph of a micro-batch, of the whole one."""

    def __init__(self, captured: CapturedModel, rows: SplitRows, count: int) -> None:
        self._captured = captured
        self._rows = rows
        self._count = count
        self._graph = fx.Graph()
        self._values: dict[tuple[fx.Node, Layouts], fx.Node] = {}
        self._totals = _Totals()
        self._results = KnownResults()

    def write(self, *, needs_loss: bool = True) -> CapturedModel:
        """All of it."""
        sources = [self._source(source) for source in self._captured.sources]
        old = self._captured.graph_module.graph.output_node()
        layouts = {node: self._layout_of_output(node) for node in old.all_input_nodes}
        for node, needed in self._needed(layouts):
            self._call(node, needed)
        new = self._graph.output(
            fx.map_arg(old.args[0], lambda node: self._value(node, layouts[node]))
        )
        new.meta = dict(old.meta)
        self._graph.lint()
        sources += [
            Source(placeholder, "total", (placeholder.name,))
            for placeholder in self._totals.placeholders.values()
        ]
        flat = list(old.args[0])  # type: ignore[arg-type]
        joins = [_join(layouts[node]) if isinstance(node, fx.Node) else "same" for node in flat]
        totals, total_sources = self._graph_of_totals()
        model = lowered(self._captured, self._graph, sources)
        split = tuple(self._rows.is_split(source) for source in self._captured.inputs)
        micro = MicroBatching(
            *(self._count, split, tuple(joins), self._loss(flat, joins, needs_loss)),
            *(totals, total_sources),
        )
        return replace(model, micro_batching=micro)

    def _source(self, source: Source) -> Source:
        new = self._graph.placeholder(source.placeholder.name)
        new.meta = dict(source.placeholder.meta)
        if self._rows.is_split(source):
            value = value_of(source.placeholder)
            new.meta["val"] = value.narrow(0, 0, value.shape[0] // self._count)
        layout = (
            () if source.kind == "literal" else next(iter(self._rows.choices[source.placeholder]))
        )
        self._values[source.placeholder, layout] = new
        return replace(source, placeholder=new)

    def _layout_of_output(self, node: fx.Node) -> str:
        found = self._rows.layouts(node)
        by_rows = [layout for layout in found if layout != WHOLE]
        return (by_rows or found)[0]

    def _needed(self, outputs: Mapping[fx.Node, str]) -> Iterator[tuple[fx.Node, Layouts]]:
        """Nodes in their order, with each layout in which they are needed."""
        needed: dict[fx.Node, dict[Layouts, None]] = {
            node: {(layout,): None} for node, layout in outputs.items()
        }
        nodes = [n for n in self._captured.graph_module.graph.nodes if n.op == "call_function"]
        for node in reversed(nodes):
            for layouts in needed.get(node, ()):
                choice = self._rows.choices[node][layouts]
                if node.target is operator.getitem:
                    needed.setdefault(node.args[0], {})[choice.operands] = None
                    continue
                for number, operand in enumerate(tensor_operands(node)):
                    if number not in choice.totals:
                        needed.setdefault(operand, {})[(choice.operands[number],)] = None
        for node in nodes:
            several = needed.get(node, {})
            if len(several) > 1 and any(self._draws(node, layouts) for layouts in several):
                raise self._drawn_twice(node)
            for layouts in several:
                yield node, layouts

    def _draws(self, node: fx.Node, layouts: Layouts) -> bool:
        config = self._rows.choices[node][layouts].config
        return config is not None and self._rows.form(node, config).random

    def _drawn_twice(self, node: fx.Node) -> TensorOptError:
        return refusal(
            self._count,
            f"op '{operator_name(node)}' ({node.target}) draws random numbers of which a "
            "micro-batch needs those of its own rows and those of all rows, which would be others",
            "compute with them row by row alone, or give them as an input",
        )

    def _call(self, node: fx.Node, layouts: Layouts) -> None:
        choice = self._rows.choices[node][layouts]
        if node.target is operator.getitem:
            args = (self._values[node.args[0], choice.operands], node.args[1])  # type: ignore[index]
            self._values[node, layouts] = self._write(node, operator.getitem, args, {})
            return
        operands = [
            self._totals.of(operand, self._graph)
            if number in choice.totals
            else self._value(operand, choice.operands[number])
            for number, operand in enumerate(tensor_operands(node))
        ]
        assert isinstance(node.target, OpOverload) and choice.config is not None
        form = self._rows.form(node, choice.config)
        if form.target:
            tensors = target_operands(node, form.operands, operands)
            new = self._write(node, operator_named(form.target), (*tensors, *form.extra), {})
        else:
            device = node.kwargs.get("device") or value_of(operands[0] if operands else node).device
            args, kwargs = local_arguments(node, form.arguments, operands, device)  # type: ignore[arg-type]
            new = self._write(node, node.target, args, kwargs)
        if form.scale != 1:
            new = self._write(new, aten.mul.Tensor, (new, form.scale), {})
        self._values[node, layouts] = new

    def _value(self, node: fx.Node, layout: str) -> fx.Node:
        """What was written; of a constant whose parts are equal the first one."""
        if (node, (layout,)) not in self._values:
            dim, whole = int(layout.removeprefix("S")), self._values[node, (WHOLE,)]
            args = (whole, dim, 0, value_of(node).shape[dim] // self._count)
            self._values[node, (layout,)] = self._write(node, aten.slice.Tensor, args, {})
        return self._values[node, (layout,)]

    def _write(
        self,
        like: fx.Node,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> fx.Node:
        node = self._graph.call_function(target, args, dict(kwargs))
        # What is made of nothing would be real, and draw.
        whole = like.meta["val"]
        mode = whole.fake_mode if isinstance(whole, FakeTensor) else nullcontext()
        with nullcontext() if node.all_input_nodes else mode:
            meta = {key: value for key, value in like.meta.items() if key != FOLDED}
            node.meta = {**meta, "val": self._results.of(target, args, kwargs)}
        return node

    def _graph_of_totals(self) -> tuple[fx.GraphModule | None, tuple[int, ...]]:
        """Of the whole batch, and the numbers of the sources that it takes."""
        if not self._totals.placeholders:
            return None, ()
        needed: set[fx.Node] = set()
        for node in reversed(self._captured.graph_module.graph.nodes):
            if node in needed or node in self._totals.placeholders:
                needed |= {node, *node.all_input_nodes}
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        numbers = []
        for number, source in enumerate(self._captured.sources):
            if source.placeholder in needed:
                numbers.append(number)
                copies[source.placeholder] = graph.placeholder(source.placeholder.name)
        for node in self._captured.graph_module.graph.nodes:
            if node in needed and node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in self._totals.placeholders))
        graph.lint()
        return fx.GraphModule(torch.nn.Module(), graph, "Totals"), tuple(numbers)

    def _loss(self, outputs: Sequence[object], joins: Sequence[Join], is_needed: bool) -> int:
        for index, (node, join) in enumerate(zip(outputs, joins, strict=True)):
            if isinstance(node, fx.Node) and join == "sum" and node not in self._rows.of_data:
                value = value_of(node)
                if value.dim() == 0 and value.is_floating_point():
                    return index
        if not is_needed:
            return -1
        raise refusal(
            self._count,
            "no output is a loss: a scalar that is a sum or a mean over rows",
            "capture the model with its loss (loss_fn=), or cut it into stages whose loss is "
            "computed outside (find_stages(schedule='gpipe'))",
        )
