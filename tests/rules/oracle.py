"""The oracle for rules: a config of an operator, run rank by rank in one
process, must give the numbers of the whole operator, forward and backward.

    bench = Bench(case, sizes=(2, 2))
    for config in range(bench.num_configs):
        bench.check(config)      # AssertionError names what is wrong
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tensoropt_torch import _C
from tensoropt_torch.emit.graph import target_operands
from tensoropt_torch.frontend.lowering import named_arguments
from tensoropt_torch.runtime.random import call_seeded
from tests.rules.case import Case, Checks, overload_of
from tests.rules.layouts import combine, split
from tests.rules.op_graph import write_op_graph
from tests.rules.references import REFERENCES, RankCall

STEP_SEED = 17

Tensors = list[torch.Tensor]
Call = dict[str, Any]  # what RankProgram.call gives
PortLayouts = tuple[str, str]  # of the value, of its gradient


@dataclass(frozen=True)
class Run:
    """The tensors of one run: ``operands[rank][i]``, ``outputs[rank][i]``."""

    operands: list[Tensors]
    outputs: list[Tensors]


class Bench:
    """One case on one mesh, with all its configs."""

    def __init__(self, case: Case, sizes: Sequence[int]) -> None:
        self.case = case
        self.sizes = tuple(sizes)
        args, kwargs = case.draw()
        leaves = pytree.tree_leaves((args, kwargs))
        self.operands = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._before = [operand.detach().clone() for operand in self.operands]
        with torch.random.fork_rng(devices=[]):
            outputs = tensors_of(case.overload(*args, **kwargs))
        self._graph = write_op_graph(case, args, kwargs, outputs)
        self.outputs = outputs[: case.used]
        self._mesh = _C.Mesh([(size, 0) for size in self.sizes])
        self._plan()

    def _plan(self) -> None:
        level = _C.Level("level", self._mesh.num_devices, 1e9, 1e-6)
        cluster = _C.Cluster("cluster", _C.Device(), [level])
        graph = self._graph.graph
        self._planner = _C.Planner(graph, cluster, self._mesh, {}, "full", 2.0, False, 10**9)
        unknown = self._planner.unknown_targets()
        assert not unknown, f"no rule for {unknown}"
        rows = self._planner.describe_nodes()
        graph_nodes = [row["graph_node"] for row in rows]
        self._space_node = graph_nodes.index(self._graph.graph_node)
        self.labels: list[str] = rows[self._space_node]["configs"]
        self._ports = self._planner.describe_ports(self._space_node)
        self._num_nodes = len(rows)

    @property
    def num_configs(self) -> int:
        """All configs of the operator on this mesh."""
        return len(self.labels)

    def ports(self, config: int) -> tuple[list[PortLayouts], list[PortLayouts]]:
        """The layouts at operands and outputs."""
        inputs, outputs = self._ports[config]
        return list(inputs), list(outputs)[: self.case.used]

    def where(self, config: int) -> str:
        """Operator, case, config and mesh, for messages."""
        return f"{self.case}, config '{self.labels[config]}' on mesh {self.sizes}"

    # --- Checking ------------------------------------------------------------

    def check(self, config: int) -> None:
        """Raises AssertionError if the config does not compute the operator."""
        self.check_with(config, *self.ports(config))

    def check_with(
        self, config: int, inputs: list[PortLayouts], outputs: list[PortLayouts]
    ) -> None:
        """``check`` with these layouts instead of the config's own."""
        random = torch.Generator().manual_seed(config)
        run = self.run(config, [value for value, _ in inputs], random)
        for i, (value, _) in enumerate(outputs):
            parts = [rank[i] for rank in run.outputs]
            self._compare(config, f"output {i}", value, parts, self.outputs[i])
        self._check_written(config, run, [value for value, _ in inputs])
        differentiable = any(output.requires_grad for output in self.outputs)
        if differentiable and self.case.checks != Checks.FORWARD:
            into = [gradient for _, gradient in outputs]
            out = [gradient for _, gradient in inputs]
            self._check_gradients(config, run, into, out, random)

    def _check_written(self, config: int, run: Run, layouts: list[str]) -> None:
        """Operands that the operator changes in place change alike."""
        for i, layout in enumerate(layouts):
            parts = [rank[i] for rank in run.operands]
            self._compare(config, f"operand {i} after the call", layout, parts, self.operands[i])

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
            if whole[i] is None:
                continue
            parts = [
                torch.zeros_like(operands[i]) if found[i] is None else found[i]
                for found, operands in zip(by_rank, run.operands, strict=True)
            ]
            self._compare(config, f"gradient of operand {i}", layout, parts, whole[i])

    def _compare(
        self, config: int, what: str, layout: str, parts: Tensors, whole: torch.Tensor
    ) -> None:
        with self._naming(config, f"{what} in layout '{layout}'"):
            parts = [part.detach() for part in parts]
            if self.case.checks == Checks.SHAPES:
                parts = [torch.zeros_like(part) for part in parts]
            got = combine(parts, layout, self.sizes)
            assert got.shape == whole.shape, f"{got.shape} != {whole.shape}"
            assert got.dtype == whole.dtype, f"{got.dtype} != {whole.dtype}"
            if self.case.checks in (Checks.VALUES, Checks.FORWARD):
                bound = self.case.tolerance
                whole = whole.detach()
                torch.testing.assert_close(got, whole, rtol=bound, atol=bound)

    @contextmanager
    def _naming(self, config: int, what: str) -> Iterator[None]:
        """Errors inside become AssertionErrors that say where they happened."""
        try:
            yield
        except (AssertionError, RuntimeError, IndexError, ValueError) as error:
            raise AssertionError(f"{self.where(config)}: {what}: {error}") from error

    # --- Running -------------------------------------------------------------

    def run(self, config: int, layouts: list[str], random: torch.Generator) -> Run:
        """Splits the operands by the layouts and calls the operator on each rank."""
        with self._naming(config, "operands"):
            by_operand = [
                split(tensor, layout, self.sizes, random)
                for tensor, layout in zip(self._before, layouts, strict=True)
            ]
        ranks: list[Tensors] = [[] for _ in range(self._mesh.num_devices)]
        for parts, whole in zip(by_operand, self.operands, strict=True):
            for rank, part in enumerate(parts):
                ranks[rank].append(part.requires_grad_(whole.requires_grad))
        with self._naming(config, "call"):
            return Run(ranks, self._call_ranks(self.calls(config), ranks))

    def backward(
        self, run: Run, incoming: Tensors, layouts: list[str], random: torch.Generator
    ) -> list[list[torch.Tensor | None]]:
        """The gradients of each rank's operands, of all ranks' outputs."""
        by_output = [
            split(gradient, layout, self.sizes, random)
            for gradient, layout in zip(incoming, layouts, strict=True)
        ]
        given = [gradient for rank in zip(*by_output, strict=True) for gradient in rank]
        found = iter(gradients(_joined(run.operands), _joined(run.outputs), given))
        return [[next(found) for _ in operands] for operands in run.operands]

    def calls(self, config: int) -> list[Call]:
        """The per-rank calls as C++ describes them."""
        choice = [0] * self._num_nodes
        choice[self._space_node] = config
        edges = [0] * len(self._planner.edges())
        strategy = _C.Strategy(0.0, 0.0, choice, [0] * self._num_nodes, edges)
        ranks = range(self._mesh.num_devices)
        programs = [_C.RankProgram(self._planner, strategy, rank) for rank in ranks]
        return [program.call(self._graph.graph_node) for program in programs]

    def _call_ranks(self, calls: list[Call], ranks: list[Tensors]) -> list[Tensors]:
        reference = REFERENCES.get(calls[0]["target"])
        if reference is None:
            results = [self._call(*pair) for pair in zip(calls, ranks, strict=True)]
        else:
            given = [
                RankCall(
                    target_operands(self._graph.call, call["operands"], operands),
                    call["extra"],
                    self._groups(call, rank),
                )
                for rank, (call, operands) in enumerate(zip(calls, ranks, strict=True))
            ]
            results = list(reference(given))
        return [
            [_scaled(t, call["scale"]) for t in tensors_of(result)[: self.case.used]]
            for call, result in zip(calls, results, strict=True)
        ]

    def _call(self, call: Call, operands: Tensors) -> Any:
        """As GraphEmitter writes it."""
        if call["target"]:
            assert not call["groups"], f"{call['target']} has no reference"
            tensors = target_operands(self._graph.call, call["operands"], operands)
            return overload_of(call["target"])(*tensors, *call["extra"])
        args, kwargs = self._arguments(call["arguments"], iter(operands))
        overload = self.case.overload
        if call["random"]:
            stream = (0, call["shard_index"])
            return call_seeded(overload, STEP_SEED, stream, *args, **kwargs)
        return overload(*args, **kwargs)

    def _arguments(
        self, replaced: dict[str, Any], operands: Iterator[torch.Tensor]
    ) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        keyword = {a.name for a in self.case.overload._schema.arguments if a.kwarg_only}
        for name, given in named_arguments(self._graph.call):
            value = fx.map_arg(replaced.get(name, given), lambda _: next(operands))
            if name in keyword:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs

    def _groups(self, call: Call, rank: int) -> list[list[int]]:
        return [self._mesh.group_of(axes, rank) if axes else [] for axes in call["groups"]]


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
    return torch.randn(tensor.shape, generator=random).to(tensor.dtype)


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor if scale == 1.0 else tensor * scale
