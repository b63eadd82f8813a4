"""The oracle for rules: a config of an operator, run rank by rank in one
process, must give the numbers of the whole operator, forward and backward.

    bench = Bench(call, sizes=(2, 2))
    for config in range(bench.num_configs):
        bench.check(config)      # RuleError names what is wrong
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.lowering import named_arguments
from tensoropt_torch.program.local_calls import CallSite, invocation
from tensoropt_torch.rules.call import Checks, OpCall, RankCall, Reference
from tensoropt_torch.rules.layouts import combine, split
from tensoropt_torch.rules.op_graph import write_op_graph
from tensoropt_torch.space.local_form import LocalForm, target_operands
from tensoropt_torch.space.search_space import unpriced_space

# Operators that communicate are computed by references.
ONE_PROCESS = CallSite(torch.device("cpu"), lambda axes: f"axis set {axes}", step_seed=17)

Tensors = list[torch.Tensor]
PortLayouts = tuple[str, str]  # of the value, of its gradient


class RuleError(TensorOptError):
    """A rule that does not compute its operator; says where and how it differs."""


@dataclass(frozen=True)
class Run:
    """The tensors of one run: ``operands[rank][i]``, ``outputs[rank][i]``."""

    operands: list[Tensors]
    outputs: list[Tensors]


class Bench:
    """One call on one mesh, with all its configs.

    ``references`` compute operators that run collectives, by target.

    Raises:
        TensorOptError: the operator has no rule.
    """

    def __init__(
        self,
        call: OpCall,
        sizes: Sequence[int],
        references: Mapping[str, Reference] | None = None,
    ) -> None:
        self.op_call = call
        self.sizes = tuple(sizes)
        self._references = references or {}
        leaves = pytree.tree_leaves((call.args, dict(call.kwargs)))
        self.operands = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._before = [operand.detach().clone() for operand in self.operands]
        with torch.random.fork_rng(devices=[]):
            outputs = tensors_of(call.overload(*call.args, **call.kwargs))
        self._graph = write_op_graph(call, outputs)
        self.outputs = outputs[: call.used]
        self.operand_names = _operand_names(self._graph.call)
        self._mesh = _C.Mesh([(size, 0) for size in self.sizes])
        self._plan()

    def _plan(self) -> None:
        lowering = self._graph.lowering
        rules = lowering.rules
        # What is made of nothing is whole in plans, and in parts in micro-batches.
        self._space = unpriced_space(
            lowering, self.sizes, split_spatial=True, idle_configs=not self.operands
        )
        if str(self.op_call.overload) not in rules.targets():
            raise TensorOptError(
                f"operator {self.op_call.overload} has no rule; give it one with register_rule"
            )
        rows = self._space.nodes()
        graph_nodes = [row.graph_node for row in rows]
        self._space_node = _C.SpaceNodeId(graph_nodes.index(self._graph.graph_node))
        self.labels = rows[self._space_node].configs
        self._ports = self._space.ports(self._space_node)
        units = self._space.units_of_node(self._graph.graph_node)
        self._operand_units = units.operands
        self._output_units = units.outputs[: self.op_call.used]
        self._num_nodes = len(rows)

    @property
    def rule(self) -> str:
        """The rule in its notation, e.g. ``b k, n k -> b n``."""
        name = self._space.nodes()[self._space_node].name
        return next(row.rule for row in self._space.explain() if row.name == name)

    @property
    def num_configs(self) -> int:
        """All configs of the operator on this mesh."""
        return len(self.labels)

    def ports(self, config: int) -> tuple[list[PortLayouts], list[PortLayouts]]:
        """The layouts at operands and outputs."""
        ports = self._ports[config]
        inputs = [(port.value, port.gradient) for port in ports.inputs]
        outputs = [(port.value, port.gradient) for port in ports.outputs]
        return inputs, outputs[: self.op_call.used]

    @property
    def units(self) -> list[list[int]]:
        """How many neighbouring entries of each dim are never parted, of operands and outputs;
        empty: single ones."""
        return [*self._operand_units, *self._output_units]

    def where(self, config: int) -> str:
        """Operator, case, config and mesh, for messages."""
        return f"{self.op_call.name}, config '{self.labels[config]}' on mesh {self.sizes}"

    # --- Checking ------------------------------------------------------------

    def check(self, config: int) -> None:
        """Raises RuleError if the config does not compute the operator."""
        self.check_with(config, *self.ports(config))

    def check_with(
        self, config: int, inputs: list[PortLayouts], outputs: list[PortLayouts]
    ) -> None:
        """``check`` with these layouts instead of the config's own."""
        random = torch.Generator().manual_seed(config)
        run = self.run(config, [value for value, _ in inputs], random)
        for i, (value, _) in enumerate(outputs):
            parts = [rank[i] for rank in run.outputs]
            expected = (self.outputs[i], self._output_units[i])
            self._compare(config, f"output {i}", value, parts, *expected)
        self._check_written(config, run, [value for value, _ in inputs])
        differentiable = self.op_call.has_gradients and self.op_call.checks != Checks.FORWARD
        if differentiable and any(output.requires_grad for output in self.outputs):
            into = [gradient for _, gradient in outputs]
            out = [gradient for _, gradient in inputs]
            self._check_gradients(config, run, into, out, random)

    def _check_written(self, config: int, run: Run, layouts: list[str]) -> None:
        """Operands that the operator changes in place change alike."""
        for i, layout in enumerate(layouts):
            parts = [rank[i] for rank in run.operands]
            what = f"operand {i} ('{self.operand_names[i]}') after the call"
            expected = (self.operands[i], self._operand_units[i])
            self._compare(config, what, layout, parts, *expected)

    def _check_gradients(
        self,
        config: int,
        run: Run,
        into: list[str],
        out: list[str],
        random: torch.Generator,
    ) -> None:
        """Gradients go in, in layouts ``into``, and must come out in ``out``."""
        incoming = [_normal_like(output, random) for output in self.outputs]
        whole = gradients(self.operands, self.outputs, incoming)
        with self._naming(config, "backward"):
            by_rank = self.backward(run, incoming, into, random)
        for i, layout in enumerate(out):
            expected = whole[i]
            if expected is None:
                continue
            parts = [
                torch.zeros_like(operands[i]) if gradient is None else gradient
                for gradient, operands in zip(
                    (found[i] for found in by_rank), run.operands, strict=True
                )
            ]
            what = f"gradient of operand {i} ('{self.operand_names[i]}')"
            self._compare(config, what, layout, parts, expected, self._operand_units[i])

    def _compare(
        self,
        config: int,
        what: str,
        layout: str,
        parts: Tensors,
        whole: torch.Tensor,
        units: list[int],
    ) -> None:
        with self._naming(config, f"{what} in layout '{layout}'"):
            parts = [part.detach() for part in parts]
            if self.op_call.checks == Checks.SHAPES:
                parts = [torch.zeros_like(part) for part in parts]
            got = combine(parts, layout, self.sizes, self.op_call.replica_tolerance, units)
            assert got.shape == whole.shape, f"{got.shape} != {whole.shape}"
            assert got.dtype == whole.dtype, f"{got.dtype} != {whole.dtype}"
            if self.op_call.checks in (Checks.VALUES, Checks.FORWARD):
                bound = self.op_call.tolerance
                whole = whole.detach()
                torch.testing.assert_close(got, whole, rtol=bound, atol=bound)

    @contextmanager
    def _naming(self, config: int, what: str) -> Iterator[None]:
        """Errors inside become RuleErrors that say where they happened."""
        try:
            yield
        except (AssertionError, RuntimeError, IndexError, ValueError) as error:
            raise RuleError(f"{self.where(config)}: {what}: {error}") from error

    # --- Running -------------------------------------------------------------

    def run(self, config: int, layouts: list[str], random: torch.Generator) -> Run:
        """Splits the operands by the layouts and calls the operator on each rank."""
        with self._naming(config, "operands"):
            by_operand = [
                split(tensor, layout, self.sizes, random, units)
                for tensor, layout, units in zip(
                    self._before, layouts, self._operand_units, strict=True
                )
            ]
        ranks: list[Tensors] = [[] for _ in range(self._mesh.num_devices)]
        for parts, whole in zip(by_operand, self.operands, strict=True):
            for rank, part in enumerate(parts):
                ranks[rank].append(part.requires_grad_(whole.requires_grad))
        with self._naming(config, "call"):
            return Run(ranks, self._call_ranks(self.forms(config), ranks))

    def backward(
        self, run: Run, incoming: Tensors, layouts: list[str], random: torch.Generator
    ) -> list[list[torch.Tensor | None]]:
        """The gradients of each rank's operands, of all ranks' outputs."""
        by_output = [
            split(gradient, layout, self.sizes, random, units)
            for gradient, layout, units in zip(incoming, layouts, self._output_units, strict=True)
        ]
        given = [gradient for rank in zip(*by_output, strict=True) for gradient in rank]
        found = iter(gradients(_joined(run.operands), _joined(run.outputs), given))
        return [[next(found) for _ in operands] for operands in run.operands]

    def forms(self, config: int) -> list[LocalForm]:
        """The calls of all ranks."""
        choice = [0] * self._num_nodes
        choice[self._space_node] = config
        edges = [0] * len(self._space.edges())
        strategy = _C.Strategy(choice, edges)
        ranks = range(self._mesh.num_devices)
        programs = [_C.RankProgram(self._space, strategy, rank) for rank in ranks]
        return [LocalForm.of(program.call(self._graph.graph_node)) for program in programs]

    def _call_ranks(self, forms: list[LocalForm], ranks: list[Tensors]) -> list[Tensors]:
        ranks = self._with_halos(forms, ranks)
        reference = self._references.get(forms[0].target)
        if reference is None:
            results = [self._call(*pair) for pair in zip(forms, ranks, strict=True)]
        else:
            given = [
                RankCall(
                    target_operands(self._graph.call, form.operands, operands),
                    list(form.extra),
                    self._groups(form, rank),
                )
                for rank, (form, operands) in enumerate(zip(forms, ranks, strict=True))
            ]
            results = list(reference(given))
        self._average(forms, ranks)
        return [
            [_scaled(t, form.scale) for t in tensors_of(result)[: self.op_call.used]]
            for form, result in zip(forms, results, strict=True)
        ]

    def _with_halos(self, forms: list[LocalForm], ranks: list[Tensors]) -> list[Tensors]:
        """The operands with what the neighbours lend of operand 0."""
        ranks = list(ranks)
        for halo in range(len(forms[0].halos)):
            first = [operands[0] for operands in ranks]
            for rank, form in enumerate(forms):
                own = form.halos[halo]
                group = self._mesh.group_of(own.axes, rank)
                blocks = [first[member] for member in group]
                borders = (own.low, own.high)
                part = bordered(blocks, group.index(rank), own.dim, borders, own.fill)
                ranks[rank] = [part, *ranks[rank][1:]]
        return ranks

    def _average(self, forms: list[LocalForm], ranks: list[Tensors]) -> None:
        """What ranks have changed of buffers by themselves becomes the mean of it."""
        for i, buffer in enumerate(forms[0].averaged):
            operand = buffer.operand
            sums = [torch.zeros_like(operands[operand]) for operands in ranks]
            for rank, total in enumerate(sums):
                members = self._mesh.group_of(buffer.axes, rank)
                for member in members:
                    begin, length = forms[member].averaged[i].own
                    changed = ranks[member][operand].narrow(0, begin, length)
                    total.narrow(0, begin, length).add_(changed)
                total.div_(len(members) // len(self._mesh.group_of(buffer.joined, rank)))
            for operands, total in zip(ranks, sums, strict=True):
                operands[operand].data.copy_(total)  # autograd has saved it, but needs no value

    def _call(self, form: LocalForm, operands: Tensors) -> Any:
        assert not form.groups, f"{form.target} has no reference"
        number = 0 if form.random else None
        return invocation(self._graph.call, form, operands, ONE_PROCESS, number)()

    def _groups(self, form: LocalForm, rank: int) -> list[list[int]]:
        return [self._mesh.group_of(axes, rank) if axes else [] for axes in form.groups]


def _operand_names(call: fx.Node) -> list[str]:
    """The argument of each operand, as in the schema."""
    names: list[str] = []
    for name, value in named_arguments(call):
        operands: list[fx.Node] = []
        fx.map_arg(value, operands.append)
        names += [name] * len(operands)
    return names


def bordered(
    blocks: Sequence[torch.Tensor], index: int, dim: int, borders: tuple[int, int], fill: float
) -> torch.Tensor:
    """Block ``index`` with the last entries of the one before and the first of the one
    after it (``halo_exchange``)."""
    low, high = borders
    own = blocks[index]
    size = own.shape[dim]
    edge = torch.full_like(own, fill)
    before = blocks[index - 1] if index > 0 else edge
    after = blocks[index + 1] if index + 1 < len(blocks) else edge
    parts = [before.narrow(dim, size - low, low), own.narrow(dim, 0, size + min(high, 0))]
    return torch.cat([*parts, after.narrow(dim, 0, max(high, 0))], dim)


def _joined(by_rank: list[Tensors]) -> Tensors:
    return [tensor for tensors in by_rank for tensor in tensors]


def tensors_of(outputs: Any) -> Tensors:
    """The outputs of a call as a list."""
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def gradients(operands: Tensors, outputs: Tensors, incoming: Tensors) -> list[torch.Tensor | None]:
    """By operand; None where the operator has no derivative."""
    leaves = [i for i, operand in enumerate(operands) if operand.requires_grad]
    used = [i for i, output in enumerate(outputs) if output.requires_grad]
    found = torch.autograd.grad(
        [outputs[i] for i in used],
        [operands[i] for i in leaves],
        [incoming[i] for i in used],
        allow_unused=True,
        retain_graph=True,
    )
    by_operand = dict(zip(leaves, found, strict=True))
    return [by_operand.get(i) for i in range(len(operands))]


def _normal_like(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    if tensor.is_complex():
        return torch.randn(tensor.shape, generator=random, dtype=tensor.dtype)
    return torch.randn(tensor.shape, generator=random).to(tensor.dtype)


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor if scale == 1.0 else tensor * scale
