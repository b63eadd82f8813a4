"""Which rows values of a graph have in one micro-batch, and by which configs they are computed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._ops import OpOverload

from tensoropt_torch import _C
from tensoropt_torch.batches.refusals import refusal
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, Source
from tensoropt_torch.frontend.lowering import operator_name, tensor_operands
from tensoropt_torch.frontend.passes.nodes import FOLDED, source_line, target_name, value_of
from tensoropt_torch.frontend.python_calls import binding_of_node, is_python_call, proof_of
from tensoropt_torch.space.local_form import LocalForm
from tensoropt_torch.space.search_space import unpriced_space

WHOLE, PENDING = "R", "P"

# Layouts of the outputs of a node on the axis of micro-batches.
Layouts = tuple[str, ...]


def batch_rows(captured: CapturedModel, whole_inputs: Sequence[str] = ()) -> int:
    """Dim 0 of the first input that is split into micro-batches; 0: there is none."""
    for source in captured.inputs:
        if source.kind == "input" and source.names[0] not in whole_inputs:
            shape = value_of(source.placeholder).shape
            if len(shape) > 0:
                return int(shape[0])
    return 0


@dataclass
class RowChoice:
    """One way to compute a node in one micro-batch: the layouts that its operands have, the
    config (None: it is a source), and operands that are totals."""

    operands: Layouts
    config: int | None
    totals: frozenset[int] = frozenset()


class SplitRows:
    """In which layouts the axis of micro-batches can have each node, and how."""

    def __init__(self, captured: CapturedModel, count: int, whole_inputs: Sequence[str]) -> None:
        self._captured = captured
        self._count = count
        self._whole_inputs = whole_inputs
        self._rows = batch_rows(captured, whole_inputs)
        self.space = unpriced_space(captured.lowering, [count], idle_configs=True)
        nodes = self.space.nodes()
        self.space_node = {
            row.graph_node: _C.SpaceNodeId(index)
            for index, row in enumerate(nodes)
            if row.graph_node >= 0
        }
        self.choices: dict[fx.Node, dict[Layouts, RowChoice]] = {}
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
        layouts = ["S0"] if self.is_split(source) else [WHOLE, *self._repeated(source)]
        self.choices[source.placeholder] = {(layout,): RowChoice((), None) for layout in layouts}
        if source.kind != "parameter":
            self.of_data.add(source.placeholder)

    def _repeated(self, source: Source) -> list[str]:
        """The dims along which a constant of the graph is, for each micro-batch, the same part:
        batch and heads in one dim, say, of positions that know no rows."""
        folded = source.placeholder.meta.get(FOLDED)
        if folded is None:
            return []
        dims = (dim for dim, size in enumerate(folded.shape) if size % self._count == 0)
        return [f"S{dim}" for dim in dims if _has_equal_parts(folded, dim, self._count)]

    def _add_call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            origin, index = node.args
            assert isinstance(origin, fx.Node) and isinstance(index, int)
            self.choices[node] = {
                (layouts[index],): RowChoice(layouts, None) for layouts in self.choices[origin]
            }
            self.of_data |= {node} if origin in self.of_data else set()
            return
        operands = tensor_operands(node)
        graph_node = self._captured.lowering.nodes[node]
        ports = self.space.ports(self.space_node[graph_node])
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
    ) -> dict[Layouts, RowChoice]:
        found: dict[Layouts, RowChoice] = {}
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
                    found.setdefault(layouts, RowChoice(wanted, config, frozenset(totals)))
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
        return LocalForm.of(self.space.local_call(space_node, config, number))

    def _mixes(self, node: fx.Node, operands: Sequence[fx.Node]) -> TensorOptError:
        if is_python_call(node):
            return refusal(
                self._count,
                f"op '{operator_name(node)}' ({binding_of_node(node).title}) runs whole, and what "
                "it gives for all rows is not known to be the sum of what it gives for some",
                "leave it out, or register a rule by which its rows can be split (register_rule)",
            )
        of_all = next((operand for operand in operands if self._is_of_all_rows(operand)), None)
        if of_all is not None:
            return refusal(
                self._count,
                f"op '{operator_name(node)}' ({node.target}) computes with '{of_all.name}', which "
                f"is made for all {self._rows} rows of the batch, and differs between them"
                f"{source_line(node)}",
                "give it to the model as an input, of which each micro-batch gets its rows",
            )
        states = ", ".join(
            f"{operand.name}: {' or '.join(_words(layout) for layout in self.layouts(operand))}"
            for operand in operands
        )
        if target_name(node).startswith("aten.embedding_bag."):
            return refusal(
                self._count,
                f"op '{operator_name(node)}' ({node.target}) gets its bags one after the other, "
                f"each as long as its offsets say ({states}), so that no part of the batch is "
                "known to have whole bags",
                "give it bags as rows: indices of two dims, the shorter ones filled up with "
                "padding_idx, and no offsets",
            )
        return refusal(
            self._count,
            f"op '{operator_name(node)}' ({node.target}) computes with rows of several of them, "
            f"or with a sum over all rows ({states}){source_line(node)}",
            "compute it row by row (GroupNorm or LayerNorm for BatchNorm, a loss that is a sum "
            "or a mean over rows)",
        )

    def _is_of_all_rows(self, node: fx.Node) -> bool:
        """Whether a value of the graph alone, such as numbers of rows, is likely of all rows."""
        if node not in self.of_data or self.layouts(node) != [WHOLE]:
            return False
        return self._rows in value_of(node).shape


def _has_equal_parts(tensor: torch.Tensor, dim: int, count: int) -> bool:
    first, *others = tensor.chunk(count, dim)
    return len(others) == count - 1 and all(torch.equal(first, other) for other in others)


def _words(layout: str) -> str:
    if layout == WHOLE:
        return "the same for all"
    return "a sum over rows" if layout == PENDING else f"rows along dim {layout[1:]}"


def _is_random(node: fx.Node) -> bool:
    assert isinstance(node.target, OpOverload)
    return torch.Tag.nondeterministic_seeded in node.target.tags
