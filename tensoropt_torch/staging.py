"""Plans of a model in stages: where it is cut, and the strategy of each part.

Stages have equally many devices. What crosses a cut has one layout on both sides: the rows of
the batch are shared out, where the part before gives them so, else every device has all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Unpack, get_args

import torch

from tensoropt_torch import _C, measure
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.checks import check_memory_limit, check_whole
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import CapturedModel, as_module
from tensoropt_torch.module.shared import check_not_shared, note_parameters
from tensoropt_torch.module.staged import StagedModule, parallelize_stages
from tensoropt_torch.plan import Plan, Settings, StagedPlan, StagePlan
from tensoropt_torch.planner.frontier import Frontier, Searched
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.stage_schedules import ScheduleName
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.space.rows import rows_of_outputs
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.stages import Cut, StageGraph, cut_graph, cut_points, even_cuts
from tensoropt_torch.tasks import (
    Example,
    Model,
    PlanningKeywords,
    PlanningOptions,
    captured_task,
    device_count,
    example_of,
    planning_of,
    takes_keywords,
)
from tensoropt_torch.values import WeightSource

Stages = int | Sequence[str | Cut]


@dataclass(frozen=True)
class StageOptions:
    """How a model is cut.

    Attributes:
        stages: how many, of about equal work; or the modules that stages begin with, by name
            (``"layers.4"``), or ``Before`` and ``After`` them.
        micro_batches: of a step.
        schedule: ``1f1b``, ``gpipe``, or ``interleaved``, whose stages have several chunks.
        chunks: of each stage; with names so many that there are stages times chunks parts.
    """

    stages: Stages = 2
    micro_batches: int = 1
    schedule: ScheduleName = "1f1b"
    chunks: int = 1

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, get_args(ScheduleName))
        check_whole("micro_batches", self.micro_batches, least=1)
        check_whole("chunks", self.chunks, least=1)
        if isinstance(self.stages, int):
            check_whole("stages", self.stages, least=2)
        elif isinstance(self.stages, str) or not self.stages:
            raise TensorOptError(
                f"stages = {self.stages!r} is not allowed; give a number, or a list of the "
                "modules that stages begin with, such as ['layers.4']"
            )
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            raise TensorOptError(
                f"schedule '{self.schedule}' with chunks={self.chunks}: the interleaved schedule "
                "has 2 chunks or more in each stage, and the others have 1"
            )

    @property
    def num_parts(self) -> int:
        """Into how many parts the graph is cut."""
        if isinstance(self.stages, int):
            return self.stages * self.chunks
        return len(self.stages) + 1

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        if self.num_parts % self.chunks:
            raise TensorOptError(
                f"stages names {self.num_parts - 1} cuts, which make {self.num_parts} parts; of "
                f"{self.chunks} chunks in each stage their number has to be a multiple"
            )
        return self.num_parts // self.chunks

    def cuts(self, captured: CapturedModel) -> list[int]:
        """Before which calls of the graph."""
        if isinstance(self.stages, int):
            return even_cuts(captured, self.num_parts)
        return cut_points(captured, self.stages)


@takes_keywords(collective=True, planning=PlanningOptions)
def find_stages(
    model: Model | Example,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    stages: Stages,
    micro_batches: int = 1,
    schedule: ScheduleName = "1f1b",
    chunks: int = 1,
    num_devices: int | None = None,
    memory_limit: float | None = None,
    **keywords: Unpack[PlanningKeywords],
) -> StagedPlan:
    """A plan of a model in stages of equally many devices, for ``parallelize``; each stage has
    the strategy that is fastest for itself within the memory limit. Costs are those of the
    cluster's description, of one micro-batch in flight.

    Collective if a process group runs: rank 0 searches, all ranks get the same plan.

    Args:
        model, args, kwargs: as for ``find_strategy``; every rank is called with the same global
            batch.
        stages, micro_batches, schedule, chunks: as of ``StageOptions``.
        num_devices: of all stages together; by default the processes that run.
        memory_limit: bytes per device.
        keywords: as for ``find_strategy``.

    Raises:
        TensorOptError: on every rank; the model cannot be cut so, or nothing fits.
    """

    def asked() -> tuple[Example, PlanningOptions, StageOptions]:
        check_memory_limit(memory_limit)
        options = StageOptions(stages, micro_batches, schedule, chunks)
        planning = planning_of(keywords)
        _check_planning(planning)
        return example_of(model, args, kwargs, keywords), planning, options

    example, planning, options = on_all_ranks(asked)
    task = captured_task(example, planning)
    count = device_count(task, num_devices)
    plan = from_first_rank(partial(plan_stages, task, options, count, memory_limit))
    return replace(plan, captured=task.captured)


def _check_planning(planning: PlanningOptions) -> None:
    refused = {
        "inputs": planning.inputs != "replicated",
        "pin": planning.pin is not None,
        "forbid": planning.forbid is not None,
        "validate": bool(planning.validate),
        "max_micro_batches": planning.max_micro_batches != 1,
    }
    hints = {
        "inputs": "every rank is called with the same global batch",
        "max_micro_batches": "give micro_batches=, the number of them",
    }
    for name, is_given in refused.items():
        if is_given:
            hint = hints.get(name, "leave it out, or plan without stages (find_strategy)")
            raise TensorOptError(f"{name}= is not for plans in stages: {hint}")


class FindPart(Protocol):
    """Finds the strategy of a part."""

    def __call__(self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel) -> Plan:
        """Of a graph, of this space."""


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
    captured = micro_batched(task.captured, options.micro_batches, task.whole_inputs)
    cuts = options.cuts(captured)
    graphs = cut_graph(captured, cuts)
    _check_graphs(captured, graphs)
    find = find or Fastest(task, task.memory_limit_of(memory_limit))
    planner = _PartPlanner(task, captured, graphs, count // stages, find)
    return StagedPlan(
        task.captured.fingerprint,
        tuple(cuts),
        tuple(planner.part(number) for number in range(len(graphs))),
        stages,
        options.micro_batches,
        options.schedule,
    )


def _check_graphs(captured: CapturedModel, graphs: Sequence[StageGraph]) -> None:
    outputs = sum(len(graph.outputs) for graph in graphs)
    if outputs > 1:
        raise TensorOptError(
            f"the model returns {outputs} tensors in training; in stages it returns its loss "
            "alone: leave out outputs='all', or return the loss"
        )
    for number, graph in enumerate(graphs):
        trained = [s for s in graph.captured.parameters if s.placeholder.meta["val"].requires_grad]
        if not trained:
            raise TensorOptError(
                f"part {number} of {len(graphs)} has no parameters that are trained, so that there "
                "is nothing for an optimizer; move a cut"
            )


@dataclass(frozen=True)
class Fastest:
    """Finds the fastest strategy within a limit of memory."""

    task: PlanningTask
    limit: float

    def __call__(self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel) -> Plan:
        """See ``FindPart``."""
        result = self.task.search.run(space, pick_limits=[self.limit])
        return Frontier([Searched(result, space, settings, captured)], 0.0).at(self.limit).plan


class _PartPlanner:
    """Plans part after part, each with what the one before has decided."""

    def __init__(
        self,
        task: PlanningTask,
        captured: CapturedModel,
        graphs: Sequence[StageGraph],
        devices: int,
        find: FindPart,
    ) -> None:
        self._task = task
        self._captured = captured
        self._graphs = graphs
        self._devices = devices
        self._find = find
        names = [s.names[0] for graph in graphs for s in graph.captured.sources]
        self._several = {name for name, count in Counter(names).items() if count > 1}
        self._storage: dict[str, str] = {}
        self._draws = 0
        self._rows: dict[str, int | None] = {}  # of what crosses cuts, the dim that is shared out
        self._shared = devices > 1 and self._divides()

    def _divides(self) -> bool:
        """Whether every device of a stage gets as many rows of each micro-batch."""
        rows = {shape[0] for shape in self._shapes_with_rows().values()}
        return len(rows) == 1 and next(iter(rows)) % self._devices == 0

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
        settings = self._settings(graph)
        space = make_space(graph.captured, settings, storage or None)
        try:
            plan = self._find(space, settings, graph.captured)
        except TensorOptError as error:
            raise TensorOptError(f"part {number} of {len(self._graphs)}: {error}") from error
        own = RankPart(plan, graph.captured, 0, storage or None)
        self._storage |= {n: at for n, at in own.storage.items() if n in self._several}
        found = StagePlan(replace(plan, captured=None), storage, self._draws)
        self._draws += own.random_calls
        self._note_rows(space, settings, graph)
        return found

    def _settings(self, graph: StageGraph) -> Settings:
        with_rows = self._shapes_with_rows()
        dims = {
            **{s.names[0]: 0 if s.names[0] in with_rows else None for s in graph.captured.inputs},
            **{crossing.name: self._rows[crossing.name] for crossing in graph.received},
        }
        task = replace(
            self._task,
            captured=graph.captured,
            inputs="sharded" if self._shared else "replicated",
            whole_inputs=tuple(n for n, d in dims.items() if d is None) if self._shared else (),
            input_dims=tuple((n, d) for n, d in dims.items() if d) if self._shared else (),
            in_micro_batches=(),
        )
        return task.settings(self._devices)

    def _note_rows(self, space: _C.SearchSpace, settings: Settings, graph: StageGraph) -> None:
        if not self._shared:
            self._rows |= {crossing.name: None for crossing in graph.sent}
            return
        rows = rows_of_outputs(graph.captured, space, settings, gathered=False)
        of_sent = rows[len(graph.outputs) :]
        for crossing, row in zip(graph.sent, of_sent, strict=True):
            self._rows[crossing.name] = row.dim


def stages_of(
    example: Example,
    plan: StagedPlan,
    device: torch.device | None,
    weights: WeightSource | None,
    refused: Mapping[str, Any],
    check_capture: bool,
) -> StagedModule:
    """The module of this rank's stage. Collective; of what is ``refused`` none may be asked for."""

    def checked() -> CapturedModel:
        for name, value in refused.items():
            if value:
                raise TensorOptError(
                    f"{name}={value!r} is not for plans in stages; leave it out, or plan without "
                    "stages (find_strategy)"
                )
        check_not_shared(as_module(example.model))
        if plan.captured is not None:
            return plan.captured
        return example.capture()

    captured = on_all_ranks(checked)
    model = as_module(example.model)
    compared = measure.KeptComparison(model, captured)
    where = device or device_of_group()
    parallel = parallelize_stages(
        example.model,
        captured,
        plan,
        where,
        weights,
        check_capture=check_capture,
        compared=compared,
    )
    note_parameters(model, parallel)
    return parallel
