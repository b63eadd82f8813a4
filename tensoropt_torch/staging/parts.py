"""Plans of a model in stages: where it is cut, and the strategy of each part.

Stages have equally many devices. What crosses a cut has one layout on both sides: the rows of
the batch are shared out along the outermost axes that divide them (``RowShares``), where the part
before gives them so, else every device has all of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from tensoropt_torch import _C
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config import mesh_axes
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.plan import (
    InputShares,
    Plan,
    Settings,
    StagedPlan,
    StagePlan,
    default_max_configs,
)
from tensoropt_torch.planner.frontier import Frontier
from tensoropt_torch.planner.memory_limits import limit_advice, recompute_advice
from tensoropt_torch.planner.searched import Searched
from tensoropt_torch.planner.stage_timeline import timeline_of
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.inner_curves import inner_curves
from tensoropt_torch.space.rows import rows_of_outputs
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.stages import StageGraph, cut_graph, trained_modules
from tensoropt_torch.staging.held_bytes import held_bytes
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.transfers import Transfers
from tensoropt_torch.units import format_bytes


class FindPart(Protocol):
    """Finds the strategy of a part."""

    def __call__(
        self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel, held: float
    ) -> Plan:
        """Of a graph, of this space; a device has so many bytes besides, of what crosses cuts."""


def plan_stages(
    task: PlanningTask,
    options: StageOptions,
    count: int,
    memory_limit: float | None = None,
    find: FindPart | None = None,
) -> StagedPlan:
    """The plan on so many devices; ``find`` finds the strategies of parts, by default each the
    fastest for itself within the limit."""
    stages = options.num_stages
    if count % stages:
        raise TensorOptError(
            f"{count} devices cannot be shared out to {stages} stages; give a number of stages "
            "that divides them"
        )
    deferred = options.schedule == "gpipe"
    captured = micro_batched(
        task.captured, options.micro_batches, task.whole_inputs, deferred=deferred
    )
    cuts = options.cuts(captured)
    graphs = cut_graph(captured, cuts, deferred=deferred)
    _check_graphs(captured, graphs)
    # Of a limit each of several chunks of a stage has its share.
    find = find or Fastest(task, task.memory_limit_of(memory_limit) / options.chunks)
    planner = _PartPlanner(task, options, captured, graphs, count, find)
    parts = tuple(planner.part(number) for number in range(len(graphs)))
    plan = StagedPlan(
        task.captured.fingerprint,
        tuple(cuts),
        parts,
        stages,
        options.micro_batches,
        options.schedule,
        sent_s=tuple(planner.sent_s(number) for number in range(len(graphs) - 1)),
        shares=InputShares(task.inputs, task.whole_inputs, task.input_dims),
    )
    return replace(plan, time_s=timeline_of(plan).step_s)


def _check_graphs(captured: CapturedModel, graphs: Sequence[StageGraph]) -> None:
    for number, graph in enumerate(graphs):
        trained = [s for s in graph.captured.parameters if s.placeholder.meta["val"].requires_grad]
        if not trained:
            raise TensorOptError(
                f"part {number} of {len(graphs)} has no parameters that are trained, so that there "
                "is nothing for an optimizer; move a cut: modules that have such parameters "
                f"are {', '.join(trained_modules(captured)) or 'none'}"
            )


@dataclass(frozen=True)
class Fastest:
    """Finds the fastest strategy within a limit of memory."""

    task: PlanningTask
    limit: float

    def __call__(
        self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel, held: float
    ) -> Plan:
        """See ``FindPart``."""
        limit = max(0.0, self.limit - held)
        frontier = self.frontier(space, settings, captured, limit)
        if frontier.smallest.memory_bytes > limit:
            raise self._too_large(frontier.least_memory_bytes, held)
        return frontier.whole_plan(frontier.at(limit).index)

    def _too_large(self, least: float, held: float) -> TensorOptError:
        needed = least + held
        advised = limit_advice(needed, self.task.cluster.device.memory_bytes)
        return TensorOptError(
            f"no strategy needs at most {format_bytes(self.limit)} per device: the least is "
            f"{format_bytes(needed)}, with {format_bytes(held)} for what stages send each other; "
            f"{advised}{recompute_advice(self.task.recompute)}give more micro_batches, or use more "
            "devices or stages"
        )

    def frontier(
        self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel, limit: float
    ) -> Frontier:
        """Of a part, to be picked from by a limit."""
        result = self.task.search.run(space, pick_limits=[limit])
        return Frontier([Searched(result, space, settings, captured)], 0.0)


def of_part(task: PlanningTask, captured: CapturedModel, count: int, devices: int) -> PlanningTask:
    """The task of a part of a model that is planned on ``count`` devices, so many of which have
    the part: with as many configs of each operator as without stages, and with what was measured
    while all devices were busy."""
    part = replace(
        task, captured=captured, max_configs=task.max_configs or default_max_configs(count)
    )
    if count != task.measured_on:
        return part
    meshes = (mesh_axes(task.cluster, number) for number in (count, devices))
    curves = inner_curves(task.measured, *meshes)
    return replace(part, measured=curves, measured_on=devices)


@dataclass(frozen=True)
class RowShares:
    """How the rows of a micro-batch are shared out to the devices of a stage: along as many of
    the outermost axes of their mesh as divide them (``Settings.row_axes``).

    Attributes:
        count: of different shares; 1: every device has all rows.
        axes: along how many axes; None: along all.
    """

    count: int
    axes: int | None

    @staticmethod
    def of(task: PlanningTask, devices: int, rows: int) -> RowShares:
        """Of so many rows; 0: there are none."""
        sizes = [size for size, _ in mesh_axes(task.cluster, devices)]
        axes = len(sizes) if rows else 0
        while rows and rows % math.prod(sizes[:axes]):
            axes -= 1
        return RowShares(math.prod(sizes[:axes]), None if axes == len(sizes) else axes)


def settings_of_part(
    task: PlanningTask,
    dims: Mapping[str, int | None],
    devices: int,
    shares: RowShares,
    in_flight: int,
) -> Settings:
    """Of a part of a model, which the task is of. ``dims`` are those of its inputs whose rows are
    shared out to the devices, None: every device has all of it."""
    rows = dims if shares.count > 1 else {}
    shared = replace(
        task,
        inputs="sharded" if rows else "replicated",
        whole_inputs=tuple(name for name, dim in rows.items() if dim is None),
        input_dims=tuple((name, dim) for name, dim in rows.items() if dim),
        in_micro_batches=(),
    )
    row_axes = shares.axes if rows else None
    return replace(shared.settings(devices), in_flight=in_flight, row_axes=row_axes)


class _PartPlanner:
    """Plans part after part, each with what the one before has decided."""

    def __init__(
        self,
        task: PlanningTask,
        options: StageOptions,
        captured: CapturedModel,
        graphs: Sequence[StageGraph],
        count: int,
        find: FindPart,
    ) -> None:
        self._task = task
        self._options = options
        self._captured = captured
        self._graphs = graphs
        self._count = count
        self._devices = devices = count // options.num_stages
        self._transfers = Transfers(task, count, options.num_stages)
        self._find = find
        names = [s.names[0] for graph in graphs for s in graph.captured.sources]
        self._several = {name for name, count in Counter(names).items() if count > 1}
        self._storage: dict[str, str] = {}
        self._draws = 0
        self._rows: dict[str, int | None] = {}  # of what crosses cuts, the dim that is shared out
        rows = {shape[0] for shape in self._shapes_with_rows().values()}
        self._shares = RowShares.of(task, devices, rows.pop() if len(rows) == 1 else 0)

    def _shapes_with_rows(self) -> dict[str, tuple[int, ...]]:
        micro = self._captured.micro_batching
        found: dict[str, tuple[int, ...]] = {}
        first = 0
        for number, source in enumerate(self._captured.inputs):
            value = source.placeholder.meta.get("val")
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                continue
            first = first or value.shape[0]
            if micro.split[number] if micro is not None else value.shape[0] == first:
                found[source.names[0]] = tuple(value.shape)
        return found

    def part(self, number: int) -> StagePlan:
        """The plan of the next part."""
        graph = self._graphs[number]
        names = {source.names[0] for source in graph.captured.sources}
        storage = {name: at for name, at in self._storage.items() if name in names}
        settings = self._settings(graph, self._options.in_flight(number))
        space = make_space(graph.captured, settings, storage or None)
        self._note_rows(space, settings, graph)
        held = self._held_bytes(graph, settings.in_flight)
        try:
            plan = self._find(space, settings, graph.captured, held)
        except TensorOptError as error:
            raise TensorOptError(f"part {number} of {len(self._graphs)}: {error}") from error
        own = RankPart(plan, graph.captured, 0, storage or None)
        self._storage |= {n: at for n, at in own.storage.items() if n in self._several}
        found = StagePlan(replace(plan, captured=None), storage, self._draws, held)
        self._draws += own.random_calls
        return found

    def _held_bytes(self, graph: StageGraph, in_flight: int) -> float:
        received, sent = (
            sum(c.num_bytes / self._shares_of(c.name) for c in several)
            for several in (graph.received, graph.sent)
        )
        return held_bytes(in_flight, self._options.micro_batches, received, sent)

    def sent_s(self, number: int) -> tuple[float, float]:
        """Of what a part that was planned sends to the next one in a micro-batch, and of the
        gradients that come back."""
        graph = self._graphs[number]
        shares = [self._shares_of(crossing.name) for crossing in graph.sent]
        return self._transfers.of_graph(number % self._options.num_stages, graph, shares)

    def _shares_of(self, name: str) -> int:
        return 1 if self._rows[name] is None else self._shares.count

    def _settings(self, graph: StageGraph, in_flight: int) -> Settings:
        with_rows = self._shapes_with_rows()
        dims = {
            **{s.names[0]: 0 if s.names[0] in with_rows else None for s in graph.captured.inputs},
            **{crossing.name: self._rows[crossing.name] for crossing in graph.received},
        }
        own = of_part(self._task, graph.captured, self._count, self._devices)
        return settings_of_part(own, dims, self._devices, self._shares, in_flight)

    def _note_rows(self, space: _C.SearchSpace, settings: Settings, graph: StageGraph) -> None:
        if self._shares.count == 1:
            self._rows |= {crossing.name: None for crossing in graph.sent}
            return
        rows = rows_of_outputs(graph.captured, space, settings.shares, self._shares.count)
        of_sent = rows[len(graph.outputs) :]
        for crossing, row in zip(graph.sent, of_sent, strict=True):
            self._rows[crossing.name] = row.dim
