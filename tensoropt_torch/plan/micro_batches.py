"""The graph of one of the micro-batches that a batch is run as.

::

    part = micro_batched(captured, 4)    # the graph of a quarter of the rows

Micro-batches are to a batch what devices are to it under data parallelism, but for when they
run. So that they may be run one by one is proven by the rules of the operators: on a mesh
of one axis with as many devices as there are micro-batches every operator must have a config
that takes its operands as its producers leave them, split along the same rows or as pending
sums, up to a loss that is a pending sum. What one rank calls there is what one micro-batch
computes, sizes, means and all.

A value that mixes rows, but depends on no parameter, as the number of valid targets does, is
computed before for the whole batch: a total. Everything else that mixes rows is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.nn._reduction import get_enum

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.frontend.lowering import lower, operator_name, tensor_operands
from tensoropt_torch.frontend.micro_batches import Join, MicroBatching
from tensoropt_torch.frontend.passes.known_results import KnownResults
from tensoropt_torch.frontend.passes.nodes import (
    add_call,
    argument,
    changes_memory,
    running_statistics,
    target_name,
    value_of,
)
from tensoropt_torch.frontend.python_calls import binding_of_node, is_python_call, proof_of
from tensoropt_torch.plan.local_form import (
    LocalForm,
    local_arguments,
    operator_named,
    target_operands,
)
from tensoropt_torch.plan.space import unpriced_planner

WHOLE, PENDING = "R", "P"

# Layouts of the outputs of a node on the axis of micro-batches.
Layouts = tuple[str, ...]


def micro_batched(
    captured: CapturedModel, count: int, whole_inputs: Sequence[str] = ()
) -> CapturedModel:
    """The graph of one of ``count`` micro-batches of the captured batch, see
    ``frontend.micro_batches``. One that is in so many already stays as it is.

    Args:
        captured: of a training step, with its loss.
        whole_inputs: names of inputs that all micro-batches get whole; so do those whose dim 0
            is not that of the first input.

    Raises:
        TensorOptError: the batch cannot be split so, or its loss is not that of its parts;
            says where.
    """
    if count == captured.micro_batches:
        return captured
    captured = captured.batch or captured
    if count == 1:
        return captured
    _check(captured, count, whole_inputs)
    counted = _with_counts(captured)
    rows = _Rows(counted, count, whole_inputs)
    return replace(_Writer(counted, rows, count).write(), batch=captured)


def batch_rows(captured: CapturedModel, whole_inputs: Sequence[str] = ()) -> int:
    """Dim 0 of the first input that is split into micro-batches; 0: there is none."""
    for source in captured.inputs:
        if source.kind == "input" and source.names[0] not in whole_inputs:
            shape = value_of(source.placeholder).shape
            if len(shape) > 0:
                return int(shape[0])
    return 0


def _check(captured: CapturedModel, count: int, whole_inputs: Sequence[str]) -> None:
    rows = batch_rows(captured, whole_inputs)
    if rows == 0 or rows % count != 0:
        raise _refusal(
            count, f"the batch has {rows} rows, which {count} does not divide", "take a divisor"
        )
    for source in captured.inputs:
        if source.kind == "input" and value_of(source.placeholder).requires_grad:
            raise _refusal(
                count, f"input '{source.names[0]}' requires a gradient", "detach it before"
            )
    for device, dtype in captured.context.autocast:
        if dtype == torch.float16:
            raise _refusal(
                count,
                f"gradients of float16 on {device} are made before a GradScaler scales the loss",
                "use bfloat16",
            )
    for node in captured.graph_module.graph.nodes:
        if changes_memory(node) or running_statistics(node):
            what = f"op '{operator_name(node)}' ({node.target}) changes a buffer in every forward"
            raise _refusal(count, what, "leave it out (for BatchNorm: GroupNorm or LayerNorm)")


def _refusal(count: int, why: str, hint: str) -> TensorOptError:
    return TensorOptError(
        f"the batch cannot be run as {count} micro-batches: {why}; {hint}, or plan with "
        "max_micro_batches=1"
    )


# --- Losses that divide by what they count ------------------------------------------------


def _with_counts(captured: CapturedModel) -> CapturedModel:
    """With means over valid targets as sums over their number, which can be a total."""
    old = captured.graph_module.graph
    wanted = [node for node in old.nodes if _counts_targets(node)]
    if not wanted:
        return captured
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in old.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in wanted:
        _divide_by_count(graph, copies[node])
    graph.eliminate_dead_code()
    graph.lint()
    sources = [replace(s, placeholder=copies[s.placeholder]) for s in captured.sources]
    return _lowered(captured, graph, sources)


def _counts_targets(node: fx.Node) -> bool:
    known = ("aten.cross_entropy_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss.default")
    if target_name(node) not in known or argument(node, "reduction") != get_enum("mean"):
        return False
    return not value_of(argument(node, "target")).is_floating_point()


def _divide_by_count(graph: fx.Graph, loss: fx.Node) -> None:
    call = loss.target
    assert isinstance(call, OpOverload)
    values = {declared.name: argument(loss, declared.name) for declared in call._schema.arguments}
    target, weight = values["target"], values["weight"]
    aten = torch.ops.aten
    with graph.inserting_before(loss):
        valid = add_call(graph, aten.ne.Scalar, (target, values["ignore_index"]), loss)
        if weight is not None:
            classes = add_call(graph, aten.mul.Tensor, (target, valid), loss)
            shape = list(value_of(target).shape)
            flat = add_call(graph, aten.reshape.default, (classes, [-1]), loss)
            taken = add_call(graph, aten.index_select.default, (weight, 0, flat), loss)
            weights = add_call(graph, aten.reshape.default, (taken, shape), loss)
            valid = add_call(graph, aten.mul.Tensor, (weights, valid), loss)
        dtype = value_of(loss).dtype
        count = add_call(graph, aten.sum.default, (valid,), loss, {"dtype": dtype})
        total = add_call(
            graph, call, tuple({**values, "reduction": get_enum("sum")}.values()), loss
        )
        mean = add_call(graph, aten.div.Tensor, (total, count), loss)
    loss.replace_all_uses_with(mean)
    graph.erase_node(loss)


def _lowered(captured: CapturedModel, graph: fx.Graph, sources: Sequence[Source]) -> CapturedModel:
    kinds = {s.placeholder: (s.kind, s.names[0]) for s in sources}
    module = fx.GraphModule(captured.graph_module, graph)
    assert module.graph is graph
    return replace(
        captured,
        graph_module=module,
        sources=tuple(sources),
        lowering=lower(graph, kinds),
    )


# --- Which rows values have ---------------------------------------------------------------


@dataclass
class _Choice:
    """One way to compute a node in one micro-batch: the layouts that its operands have, the
    config (None: it is a source), and operands that are totals."""

    operands: Layouts
    config: int | None
    totals: frozenset[int] = frozenset()


class _Rows:
    """In which layouts the axis of micro-batches can have each node, and how."""

    def __init__(self, captured: CapturedModel, count: int, whole_inputs: Sequence[str]) -> None:
        self._captured = captured
        self._count = count
        self._whole_inputs = whole_inputs
        self._rows = batch_rows(captured, whole_inputs)
        self.planner = unpriced_planner(captured.lowering, [count], idle_configs=True)
        nodes = self.planner.nodes()
        self.space_node = {
            row.graph_node: _C.SpaceNodeId(index)
            for index, row in enumerate(nodes)
            if row.graph_node >= 0
        }
        self.choices: dict[fx.Node, dict[Layouts, _Choice]] = {}
        self.of_data: set[fx.Node] = set()  # without parameters and random numbers
        for source in captured.sources:
            self._add_source(source)
        for node in captured.graph_module.graph.nodes:
            if node.op == "call_function":
                self._add_call(node)

    def is_split(self, source: Source) -> bool:
        """Whether every micro-batch has rows of its own."""
        if source.kind != "input" or source.names[0] in self._whole_inputs:
            return False
        shape = value_of(source.placeholder).shape
        return len(shape) > 0 and int(shape[0]) == self._rows

    def layouts(self, node: fx.Node) -> list[str]:
        """Those of the only output of a node."""
        return [layouts[0] for layouts in self.choices[node]]

    def _add_source(self, source: Source) -> None:
        if source.kind == "literal":
            return
        layout = "S0" if self.is_split(source) else WHOLE
        self.choices[source.placeholder] = {(layout,): _Choice((), None)}
        if source.kind != "parameter":
            self.of_data.add(source.placeholder)

    def _add_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            origin, index = node.args
            assert isinstance(origin, fx.Node) and isinstance(index, int)
            self.choices[node] = {
                (layouts[index],): _Choice(layouts, None) for layouts in self.choices[origin]
            }
            self.of_data |= {node} if origin in self.of_data else set()
            return
        operands = tensor_operands(node)
        graph_node = self._captured.lowering.nodes[node]
        ports = self.planner.ports(self.space_node[graph_node])
        if all(operand in self.of_data for operand in operands) and not _is_random(node):
            self.of_data.add(node)
        found = self._choices(node, ports, operands, with_totals=False)
        found = found or self._choices(node, ports, operands, with_totals=True)
        if not found:
            raise self._mixes(node, operands)
        self.choices[node] = found

    def _choices(
        self,
        node: fx.Node,
        ports: Sequence[_C.ConfigPorts],
        operands: list[fx.Node],
        *,
        with_totals: bool,
    ) -> dict[Layouts, _Choice]:
        found: dict[Layouts, _Choice] = {}
        by_rows_only = self._must_have_rows(node)
        for config, of_config in enumerate(ports):
            wanted = tuple(port.value for port in of_config.inputs)
            if by_rows_only and not any(layout.startswith("S") for layout in wanted):
                continue
            totals = set()
            for number, (operand, layout) in enumerate(zip(operands, wanted, strict=True)):
                if layout in self.layouts(operand):
                    continue
                if not (with_totals and layout == WHOLE and self._may_be_total(operand)):
                    break
                totals.add(number)
            else:
                if self._is_local(node, config):
                    layouts = tuple(port.value for port in of_config.outputs)
                    found.setdefault(layouts, _Choice(wanted, config, frozenset(totals)))
        return found

    def _must_have_rows(self, node: fx.Node) -> bool:
        """Whether a call of Python gives other gradients for the sum of some than the sum of
        theirs, so that it may not get those of one micro-batch after the other."""
        if not is_python_call(node) or node in self.of_data:
            return False
        proof = proof_of(target_name(node))
        return any(binding_of_node(node).differentiable) and not (proof and proof.linear)

    def _may_be_total(self, node: fx.Node) -> bool:
        return node in self.of_data and PENDING in self.layouts(node)

    def _is_local(self, node: fx.Node, config: int) -> bool:
        """Whether all micro-batches make the same call, which needs no others."""
        form = self.form(node, config)
        if form != self.form(node, config, self._count - 1):
            return False
        scales_one = form.scale == 1 or isinstance(node.meta["val"], torch.Tensor)
        return not (form.groups or form.halos) and scales_one

    def form(self, node: fx.Node, config: int, number: int = 0) -> LocalForm:
        """What one of the micro-batches calls."""
        space_node = self.space_node[self._captured.lowering.nodes[node]]
        return LocalForm.of(self.planner.local_call(space_node, config, number))

    def _mixes(self, node: fx.Node, operands: Sequence[fx.Node]) -> TensorOptError:
        if is_python_call(node):
            return _refusal(
                self._count,
                f"op '{operator_name(node)}' ({binding_of_node(node).title}) runs whole, and what "
                "it gives for all rows is not known to be the sum of what it gives for some",
                "leave it out, or register a rule by which its rows can be split (register_rule)",
            )
        states = ", ".join(
            f"{operand.name}: {' or '.join(_words(layout) for layout in self.layouts(operand))}"
            for operand in operands
        )
        return _refusal(
            self._count,
            f"op '{operator_name(node)}' ({node.target}) computes with rows of several of them, "
            f"or with a sum over all rows ({states})",
            "compute it row by row (GroupNorm or LayerNorm for BatchNorm, a loss that is a sum "
            "or a mean over rows)",
        )


def _words(layout: str) -> str:
    if layout == WHOLE:
        return "the same for all"
    return "a sum over rows" if layout == PENDING else f"rows along dim {layout[1:]}"


def _is_random(node: fx.Node) -> bool:
    assert isinstance(node.target, OpOverload)
    return torch.Tag.nondeterministic_seeded in node.target.tags


def _join(layout: str) -> Join:
    if layout == PENDING:
        return "sum"
    return "same" if layout == WHOLE else int(layout.removeprefix("S"))


# --- The graph ------------------------------------------------------------------------------


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


class _Writer:
    """Writes the graph of a micro-batch, of the whole one."""

    def __init__(self, captured: CapturedModel, rows: _Rows, count: int) -> None:
        self._captured = captured
        self._rows = rows
        self._count = count
        self._graph = fx.Graph()
        self._values: dict[tuple[fx.Node, Layouts], fx.Node] = {}
        self._totals = _Totals()
        self._results = KnownResults()

    def write(self) -> CapturedModel:
        """All of it."""
        sources = [self._source(source) for source in self._captured.sources]
        old = self._captured.graph_module.graph.output_node()
        layouts = {node: self._layout_of_output(node) for node in old.all_input_nodes}
        for node, needed in self._needed(layouts):
            self._call(node, needed)
        new = self._graph.output(
            fx.map_arg(old.args[0], lambda node: self._values[node, (layouts[node],)])
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
        lowered = _lowered(self._captured, self._graph, sources)
        split = tuple(self._rows.is_split(source) for source in self._captured.inputs)
        micro = MicroBatching(
            self._count, split, tuple(joins), self._loss(flat, joins), totals, total_sources
        )
        return replace(lowered, micro_batching=micro)

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
            for layouts in needed.get(node, ()):
                yield node, layouts

    def _call(self, node: fx.Node, layouts: Layouts) -> None:
        choice = self._rows.choices[node][layouts]
        if node.target is operator.getitem:
            args = (self._values[node.args[0], choice.operands], node.args[1])  # type: ignore[index]
            self._values[node, layouts] = self._write(node, operator.getitem, args, {})
            return
        operands = [
            self._totals.of(operand, self._graph)
            if number in choice.totals
            else self._values[operand, (choice.operands[number],)]
            for number, operand in enumerate(tensor_operands(node))
        ]
        assert isinstance(node.target, OpOverload) and choice.config is not None
        form = self._rows.form(node, choice.config)
        if form.target:
            tensors = target_operands(node, form.operands, operands)
            new = self._write(node, operator_named(form.target), (*tensors, *form.extra), {})
        else:
            device = node.kwargs.get("device") or value_of(operands[0]).device
            args, kwargs = local_arguments(node, form.arguments, operands, device)  # type: ignore[arg-type]
            new = self._write(node, node.target, args, kwargs)
        if form.scale != 1:
            new = self._write(new, torch.ops.aten.mul.Tensor, (new, form.scale), {})
        self._values[node, layouts] = new

    def _write(
        self,
        like: fx.Node,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> fx.Node:
        node = self._graph.call_function(target, args, dict(kwargs))
        node.meta = {**like.meta, "val": self._results.of(target, args, kwargs)}
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

    def _loss(self, outputs: Sequence[object], joins: Sequence[Join]) -> int:
        for index, (node, join) in enumerate(zip(outputs, joins, strict=True)):
            if isinstance(node, fx.Node) and join == "sum" and node not in self._rows.of_data:
                value = value_of(node)
                if value.dim() == 0 and value.is_floating_point():
                    return index
        raise _refusal(
            self._count,
            "no output is a loss: a scalar that is a sum or a mean over rows",
            "capture the model with its loss (loss_fn=)",
        )
