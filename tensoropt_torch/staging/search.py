"""The frontier of plans in stages: where the model is cut, into how many stages, and in how many
micro-batches a step runs.

::

    for found in pipelines(task, SearchedStages(8, (2, 4, 8, 16)), 64):  # by ascending memory
        found.memory_bytes, found.time_s, found.stages, found.cuts

A frontier of strategies is searched for each interval of calls that a stage may be, once for those
that are alike, for the number of micro-batches that are in flight there. These are composed
(``csrc/pipeline/composition.h``): within a cap on memory every stage takes its fastest strategy,
and what is left are the cuts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from tensoropt_torch import _C
from tensoropt_torch.batches import batch_rows, doubled, micro_batched
from tensoropt_torch.checks import check_whole
from tensoropt_torch.config.cluster import Cluster, Level
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Settings, StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.stage_schedules import in_flight
from tensoropt_torch.progress import progress
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.stages import StageGraph, cut_stage
from tensoropt_torch.stages.intervals import Interval, Intervals
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import plan_stages, settings_of_part
from tensoropt_torch.units import format_bytes

log = get_logger(__name__)

MEMORY_STEP = 0.005  # pipelines within this share of memory stand for each other
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class FoundPipeline:
    """A point: memory of the worst device (bytes) and seconds of a step, in closed form.

    Attributes:
        stages, micro_batches: how many.
        cuts: before which calls of the graph of a micro-batch.
    """

    memory_bytes: float
    time_s: float
    stages: int
    micro_batches: int
    cuts: tuple[int, ...]


@dataclass(frozen=True)
class SearchedStages:
    """What is searched.

    Attributes:
        max_stages: powers of two up to it are tried.
        micro_batches: the numbers of them that are tried.
    """

    max_stages: int
    micro_batches: tuple[int, ...]

    def __post_init__(self) -> None:
        check_whole("max_stages", self.max_stages, least=2)
        for number in self.micro_batches:
            check_whole("micro_batches", number, least=1)

    @staticmethod
    def of(max_stages: int, micro_batches: int | None, max_micro_batches: int) -> SearchedStages:
        """With this number of micro-batches, or powers of two up to ``max_micro_batches``."""
        if micro_batches is not None:
            return SearchedStages(max_stages, (micro_batches,))
        return SearchedStages(max_stages, (1, *doubled(max_micro_batches)))


def plan_searched(
    task: PlanningTask, wanted: SearchedStages, count: int, memory_limit: float | None = None
) -> StagedPlan:
    """The plan of the fastest pipeline within the memory limit.

    Raises:
        TensorOptError: the model cannot be cut into stages, or none fits.
    """
    limit = task.memory_limit_of(memory_limit)
    found = pipelines(task, wanted, count, limit)
    if not found:
        raise TensorOptError(
            f"no plan in up to {wanted.max_stages} stages on {count} devices, of "
            f"{', '.join(map(str, wanted.micro_batches))} micro-batches, needs at most "
            f"{format_bytes(limit)} per device; set recompute=True, raise max_micro_batches or "
            "max_stages, use more devices, or give stages= to see what is in the way of one"
        )
    best = found[-1]
    options = StageOptions(best.cuts, best.micro_batches)
    return plan_stages(task, options, count, best.memory_bytes)


def pipelines(
    task: PlanningTask, wanted: SearchedStages, count: int, memory_limit: float = math.inf
) -> list[FoundPipeline]:
    """The frontier on so many devices: points by ascending memory, none beaten, none above the
    limit; empty if the model cannot be cut so."""
    numbers = [n for n in doubled(wanted.max_stages) if count % n == 0]
    found: list[FoundPipeline] = []
    with progress("searching stages", len(numbers) * len(wanted.micro_batches)) as done:
        for micro_batches in wanted.micro_batches:
            try:
                captured = micro_batched(task.captured, micro_batches, task.whole_inputs)
            except TensorOptError as error:
                log.info("no stages with %d micro-batches: %s", micro_batches, error)
                continue
            graph = _MicroBatchGraph(task, count, captured, memory_limit)
            for stages in numbers:
                found += graph.pipelines(stages)
                done()
    return _unbeaten(found)


class _MicroBatchGraph:
    """Pipelines of the graph of one micro-batch."""

    def __init__(
        self, task: PlanningTask, count: int, captured: CapturedModel, memory_limit: float
    ) -> None:
        self._task = task
        self._count = count
        self._captured = captured
        self._limit = memory_limit
        self._micro_batches = captured.micro_batches
        self._intervals = Intervals(captured)
        self._points: dict[Hashable, Points] = {}

    def pipelines(self, stages: int) -> list[FoundPipeline]:
        """Of so many stages."""
        of_stages = self._intervals.of_stages(stages)
        offered = [(stage, one) for stage, several in enumerate(of_stages) for one in several]
        choices = [self._choice(stage, stages, interval) for stage, interval in offered]
        shape = _C.PipelineShape(
            stages=stages,
            micro_batches=self._micro_batches,
            end=self._captured.num_calls,
            memory_step=MEMORY_STEP,
        )
        return [
            FoundPipeline(
                pipeline.memory_bytes,
                pipeline.time_s,
                stages,
                self._micro_batches,
                tuple(offered[stage.choice][1].last for stage in pipeline.stages[:-1]),
            )
            for pipeline in _C.compose_pipelines(choices, shape)
        ]

    def _choice(self, stage: int, stages: int, interval: Interval) -> _C.StageChoice:
        return _C.StageChoice(
            stage=stage,
            first_cut=interval.first,
            last_cut=interval.last,
            transfer_s=self._transfer_s(interval.sent_bytes, stages),
            points=self._frontier(stage, stages, interval),
        )

    def _frontier(self, stage: int, stages: int, interval: Interval) -> Points:
        flight = in_flight("1f1b", stage, stages, self._micro_batches)
        key = (stages, flight, interval.alike)
        if key not in self._points:
            self._points[key] = self._searched(stages, flight, interval)
        return self._points[key]

    def _searched(self, stages: int, flight: int, interval: Interval) -> Points:
        """The frontier of what lies between two cuts; none where it cannot be a stage."""
        try:
            graph = self._stage_graph(interval)
            settings = self._settings(graph, self._count // stages, flight)
            space = make_space(graph.captured, settings)
            picks = [self._limit] if math.isfinite(self._limit) else []
            return self._task.search.run(space, self._limit, pick_limits=picks).points
        except TensorOptError as error:
            log.info("no stage of calls %d to %d: %s", interval.first, interval.last, error)
            return []

    def _stage_graph(self, interval: Interval) -> StageGraph:
        calls = self._captured.num_calls
        cuts = [cut for cut in (interval.first, interval.last) if 0 < cut < calls]
        number = 1 if interval.first > 0 else 0
        return cut_stage(self._captured, cuts, number)

    def _settings(self, graph: StageGraph, devices: int, flight: int) -> Settings:
        dims = self._row_dims(graph, devices)
        is_shared = any(dim is not None for dim in dims.values())
        own = replace(self._task, captured=graph.captured)
        return settings_of_part(own, dims if is_shared else None, devices, flight)

    def _row_dims(self, graph: StageGraph, devices: int) -> dict[str, int | None]:
        """The dim of what a stage takes whose rows are shared out to its devices."""
        rows = self._rows
        if devices == 1 or rows == 0 or rows % devices:
            rows = -1
        inputs = graph.captured.inputs
        return {s.names[0]: _dim_of(s.placeholder.meta.get("val"), rows) for s in inputs}

    @cached_property
    def _rows(self) -> int:
        return batch_rows(self._captured, self._task.whole_inputs)

    def _transfer_s(self, sent_bytes: int, stages: int) -> float:
        """Of what a device sends to the next stage, and of the gradients that it gets back."""
        devices = self._count // stages
        rows = self._rows
        share = devices if rows and rows % devices == 0 else 1
        level = _level_between(self._task.cluster, devices)
        return 2 * (level.latency_s + sent_bytes / share / level.bandwidth_bytes_per_s)


def _level_between(cluster: Cluster, devices: int) -> Level:
    """The level over which a device reaches that of the same number in the next stage."""
    reached = 1
    for level in reversed(cluster.levels):
        reached *= level.count
        if devices < reached:
            return level
    return cluster.levels[0]


def _dim_of(value: object, rows: int) -> int | None:
    """The dim of a value that has so many rows; the first one, if several have."""
    if not isinstance(value, torch.Tensor):
        return None
    return next((dim for dim, size in enumerate(value.shape) if size == rows), None)


def _unbeaten(found: Iterable[FoundPipeline]) -> list[FoundPipeline]:
    kept: list[FoundPipeline] = []
    for pipeline in sorted(found, key=lambda one: (one.memory_bytes, one.time_s)):
        if not kept or pipeline.time_s < kept[-1].time_s:
            kept.append(pipeline)
    return kept
