"""Pipelines of one number of micro-batches: the frontiers of what stages may be, and what is
composed of them.

::

    graph = MicroBatchGraph(task, 64, micro_batched(task.captured, 8))
    for one in graph.pipelines(4):
        one.memory_bytes, one.time_s, one.cuts
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property

import torch

from tensoropt_torch import _C
from tensoropt_torch.batches import batch_rows
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Guarantee, Settings
from tensoropt_torch.planner.points import thinned_indices
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.searched import Points, weakest
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.stage_schedules import ScheduleName, in_flight, schedules_of
from tensoropt_torch.program.stage_times import StageTimes, timeline
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.stages import StageGraph, cut_points, cut_stage
from tensoropt_torch.stages.intervals import Interval, Intervals
from tensoropt_torch.staging.bounds import StageBounds, is_matched, least_step
from tensoropt_torch.staging.held_bytes import held_bytes
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import RowShares, of_part, settings_of_part
from tensoropt_torch.staging.tables import SpacesOfStages
from tensoropt_torch.staging.transfers import Transfers
from tensoropt_torch.staging.uses import Use, in_pipelines
from tensoropt_torch.telling.timeline import FORWARD_SHARE

log = get_logger(__name__)

MEMORY_STEP = 0.005  # pipelines within this share of memory stand for each other
# What GPipe may be faster than 1F1B, of a step, where it is not searched.
GPIPE_ERROR = 0.002
# Of what is known so many points say what is of no use.
MOST_KNOWN = 48


@dataclass(frozen=True)
class FoundPipeline:
    """A point: memory of the worst device (bytes) and seconds of a step, as it is simulated.

    Attributes:
        stages, micro_batches: how many.
        cuts: before which calls of the graph of a micro-batch.
        cap_bytes: of a device; each of its chunks has the fastest strategy within an equal share.
        schedule: in which order stages run micro-batches.
        chunks: of each stage.
    """

    memory_bytes: float
    time_s: float
    stages: int
    micro_batches: int
    cuts: tuple[int, ...]
    cap_bytes: float
    schedule: ScheduleName = "1f1b"
    chunks: int = 1

    @property
    def options(self) -> StageOptions:
        """How the model is cut."""
        return StageOptions(self.cuts, self.micro_batches, self.schedule, self.chunks)


class MicroBatchGraph:
    """Pipelines of the graph of one micro-batch, by 1F1B or ``under`` another schedule.

    Of the interleaved schedule each part of a stage takes as much memory as the others, and the
    part that takes longest decides: what is found is simulated as all is, and others may be better.
    ``stage`` is the number of a part there, of stages times chunks.
    """

    def __init__(
        self,
        task: PlanningTask,
        count: int,
        captured: CapturedModel,
        memory_limit: float = math.inf,
        pick_limits: Sequence[float] = (),
    ) -> None:
        self._task = task
        self._count = count
        self._captured = captured
        self._limit = memory_limit
        limits = {limit for limit in (*pick_limits, memory_limit) if math.isfinite(limit)}
        self._pick_limits = sorted(limits)
        self._found: list[Guarantee] = []
        self._longer = self._spared = 1.0
        self._micro_batches = captured.micro_batches
        self._schedule: ScheduleName = "1f1b"
        self._chunks = 1
        self._offered: dict[int, list[tuple[int, Interval]]] = {}
        self._transfers: dict[int, Transfers] = {}  # by the number of stages
        self.spaces = SpacesOfStages()
        pinned = cut_points(captured, task.stage_pins.begins)
        self.intervals = Intervals(captured, pinned)

    def under(self, schedule: ScheduleName, chunks: int = 1) -> MicroBatchGraph:
        """The same with another schedule, with ``guarantee`` for itself."""
        other = copy(self)
        other._schedule, other._chunks, other._found = schedule, chunks, []
        other._longer = other._spared = 1.0
        return other

    def rules_out_gpipe(self, stages: int, fastest_s: float) -> bool:
        """Whether GPipe need not be searched, if no pipeline of these stages by 1F1B takes much
        less than ``fastest_s``: what it is faster by, of the same stages, is little of a step, and
        they need no more memory by 1F1B. The bound grows by that.

        A step by 1F1B is longer by transfers alone, where one round trip waits for the one before:
        of stage s of S at most M - 1 through S - s times, each time of all transfers behind it
        (``csrc/pipeline/step_time.cc``).
        """
        sent = [0.0] * stages
        for stage, one in self.offered(stages):
            if stage < stages - 1:
                sent[stage] = max(sent[stage], self.transfer_s(stage, one.sent_bytes, stages))
        most = max(
            (self._micro_batches - 1) // (stages - stage) * sum(sent[stage:])
            for stage in range(stages)
        )
        least_s = fastest_s / (1 + self._epsilon) - most
        if least_s <= 0 or most > GPIPE_ERROR * least_s:
            return False
        self._spared = max(self._spared, 1 + most / least_s)
        return True

    def pipelines(self, stages: int, known: Points = ()) -> list[FoundPipeline]:
        """Of so many stages, but for what a known strategy stands for; where they ``may_pay``."""
        offered = self.offered(stages)
        if not offered:
            return []
        shape = self._shape(stages)
        frontiers = self._frontiers(offered, stages, shape, known)
        choices = [
            self._choice(*at, stages, self._composed(points, stages))
            for at, points in zip(offered, frontiers, strict=True)
        ]
        found = []
        for composed in _C.compose_pipelines(choices, shape):
            if composed.memory_bytes > self._limit:
                continue
            chosen = [offered[part.choice][1] for part in composed.stages]
            memories, seconds = zip(
                *(frontiers[part.choice][part.point] for part in composed.stages), strict=True
            )
            step_s = self._simulated_s(chosen, seconds)
            self._longer = max(self._longer, step_s / composed.time_s)
            found.append(
                FoundPipeline(
                    max(sum(memories[stage::stages]) for stage in range(stages)),
                    step_s,
                    stages,
                    self._micro_batches,
                    tuple(interval.last for interval in chosen[:-1]),
                    composed.memory_bytes,
                    self._schedule,
                    self._chunks,
                )
            )
        return found

    def _shape(self, stages: int) -> _C.PipelineShape:
        """Of what is composed. A step by the interleaved schedule, of S stages of V chunks each,
        takes M V + S - 1 times a part where all take as long: as long as one by GPipe of as many
        parts and (M - S) V + S micro-batches, whose closed form has the longest part and the way
        through all as well."""
        return _C.PipelineShape(
            stages=stages * self._chunks,
            micro_batches=self._composed_micro_batches(stages),
            end=self._captured.num_calls,
            schedule="gpipe" if self._schedule == "interleaved" else self._schedule,
            forward_share=FORWARD_SHARE,
            memory_step=MEMORY_STEP,
            pick_limits=self._pick_limits,
        )

    def _composed(self, points: Points, stages: int) -> Points:
        """Of a part, as it is composed: the memory of a stage whose parts all have as much, and
        seconds of all the micro-batches that ``_shape`` has."""
        more = self._more_micro_batches(stages)
        return [(self._chunks * memory, more * seconds) for memory, seconds in points]

    def _more_micro_batches(self, stages: int) -> float:
        return self._composed_micro_batches(stages) / self._micro_batches

    def _composed_micro_batches(self, stages: int) -> int:
        if self._schedule != "interleaved":
            return self._micro_batches
        return (self._micro_batches - stages) * self._chunks + stages

    def _simulated_s(self, chosen: Sequence[Interval], seconds: Sequence[float]) -> float:
        """Of a step of parts that take so long for all micro-batches."""
        stages = len(chosen) // self._chunks
        both = [time / self._micro_batches for time in seconds]
        sent = tuple(
            self.transfer_s(stage, one.sent_bytes, stages) / 2
            for stage, one in enumerate(chosen[:-1])
        )
        times = StageTimes(
            tuple(FORWARD_SHARE * time for time in both),
            tuple((1 - FORWARD_SHARE) * time for time in both),
            sent,
            sent,
        )
        schedules = schedules_of(self._schedule, stages, self._micro_batches, self._chunks)
        return timeline(schedules, times).step_s

    def offered(self, stages: int) -> list[tuple[int, Interval]]:
        """Which each part of so many stages may be; none if some cannot be any."""
        parts = stages * self._chunks
        if parts not in self._offered:
            of_parts = self.intervals.of_stages(parts)
            found = [(part, one) for part, several in enumerate(of_parts) for one in several]
            self._offered[parts] = found if all(of_parts) else []
        return self._offered[parts]

    def bounds(self, stages: int, offered: Sequence[tuple[int, Interval]]) -> StageBounds:
        """What these cost at least."""
        settings = self._settings(self._captured, self._count // stages)
        tables = self.spaces.space(stages, None, lambda: make_space(self._captured, settings))
        return StageBounds(
            tables,
            self.search,
            self.intervals.places(),
            offered,
            lambda stage: self.flight(stage, stages),
        )

    def _frontiers(
        self,
        offered: Sequence[tuple[int, Interval]],
        stages: int,
        shape: _C.PipelineShape,
        known: Points,
    ) -> list[Points]:
        """Those of the intervals, as far as they matter beside what is known."""
        spaces = _StageSpaces(self, stages, offered)
        if not known:
            uses = [Use.any() for _ in offered]
        else:
            uses = self._uses(spaces, offered, stages, shape, known)
        return [spaces.frontier(*at, use) for at, use in zip(offered, uses, strict=True)]

    def may_pay(self, stages: int, known: Points) -> bool:
        """Whether there may be a pipeline that beats what is known. Its stages together have at
        most its memory times their number, of which what crosses cuts is more than the whole graph
        keeps of it, and take at most the time that a step of equal stages leaves them."""
        offered = self.offered(stages)
        if not offered or not known:
            return bool(offered)
        least = least_step(self._schedule, stages, self._micro_batches, self._chunks)
        longer = stages * self._micro_batches / least
        whole = [(memory * stages, time * longer) for memory, time in known]
        picks = [limit * stages for limit in self._pick_limits]
        return self.bounds(stages, offered).beats(whole, self._limit * stages, picks)

    def _uses(
        self,
        spaces: _StageSpaces,
        offered: Sequence[tuple[int, Interval]],
        stages: int,
        shape: _C.PipelineShape,
        known: Points,
    ) -> list[Use]:
        """What of each interval's frontier may be of use beside what is known."""
        few = [known[index] for index in thinned_indices(len(known), MOST_KNOWN)]
        memories = [memory for memory, _ in few]
        lines = self.bounds(stages, offered).least(self._limit / self._chunks)
        of_parts = [memory / self._chunks for memory in memories]
        steps = [
            self._composed(self._steps(lines[spaces.key(*at)], of_parts, *at, stages), stages)
            for at in offered
        ]
        least = [self._choice(*at, stages, own) for at, own in zip(offered, steps, strict=True)]
        of_alike: dict[Hashable, list[float]] = {}
        for at, own in zip(offered, _C.longest_useful(least, shape, few), strict=True):
            key = spaces.key(*at)
            of_alike[key] = [max(pair) for pair in zip(own, of_alike.get(key, own), strict=True)]
        uses = [
            Use.of(own, [0.0, *memories], of_alike[spaces.key(*at)], 1 + self._epsilon)
            for at, own in zip(offered, steps, strict=True)
        ]
        several = in_pipelines(offered, uses, stages * self._chunks)
        return [use.divided(self._chunks, self._more_micro_batches(stages)) for use in several]

    def _steps(
        self,
        lines: _C.SupportingLines,
        memories: Sequence[float],
        stage: int,
        interval: Interval,
        stages: int,
    ) -> Points:
        """What a stage costs at least, with what it holds of what crosses its cuts."""
        held = self.held_bytes(stage, interval, stages)
        own = lines.steps([memory - held for memory in memories])
        return [(memory + held, time) for memory, time in own]

    def _choice(
        self, stage: int, interval: Interval, stages: int, points: Points
    ) -> _C.StageChoice:
        return _C.StageChoice(
            stage=stage,
            first_cut=interval.first,
            last_cut=interval.last,
            transfer_s=self.transfer_s(stage, interval.sent_bytes, stages),
            points=list(points),
        )

    def stage_space(self, stages: int, interval: Interval) -> _C.SearchSpace:
        """Of what lies between two cuts.

        Raises:
            TensorOptError: it cannot be a stage.
        """
        graph = self._stage_graph(interval)
        settings = self._settings(graph.captured, self._count // stages)
        return make_space(graph.captured, settings)

    def searched(
        self, space: _C.SearchSpace, flight: int, limit: float = math.inf, held: float = 0.0
    ) -> Points:
        """The frontier of a space with so many micro-batches in flight, up to a limit, of a stage
        that holds so many bytes besides."""
        own = min(limit, self._limit / self._chunks) - held
        if own <= 0:
            return []
        picks = [pick / self._chunks - held for pick in self._pick_limits]
        picks = [pick for pick in picks if pick > 0]
        result = space.search_in_flight(flight, self.search.options(own, picks))
        epsilon = self._epsilon if result.exact else math.inf
        self._found.append(
            Guarantee(result.exact, epsilon, tuple(result.heuristics), space.complete)
        )
        return [(memory + held, time) for memory, time in result.points]

    @property
    def guarantee(self) -> Guarantee:
        """What holds for all that was found. What is composed by the closed form, which is no
        longer than a step, takes longer by some share when it is simulated, and GPipe, where it was
        ruled out, may be faster by some share."""
        epsilon = (1 + self._epsilon) * self._longer * self._spared - 1
        return weakest([Guarantee(epsilon=epsilon), *self._found])

    @property
    def _epsilon(self) -> float:
        """Of pipelines: that of their stages, and of those that stand for each other."""
        return (1 + self._task.search.epsilon) * (1 + MEMORY_STEP) - 1

    @property
    def micro_batches(self) -> int:
        """How many a step has."""
        return self._micro_batches

    @property
    def is_pinned(self) -> bool:
        """Whether some stages begin where it is asked for."""
        return bool(self._task.stage_pins.begins)

    @property
    def search(self) -> SearchSettings:
        """How stages are searched."""
        return self._task.search

    def flight(self, stage: int, stages: int) -> int:
        """How many micro-batches are in flight in a stage."""
        return _flights(self._schedule, stages, self._micro_batches, self._chunks)[stage]

    def _stage_graph(self, interval: Interval) -> StageGraph:
        calls = self._captured.num_calls
        cuts = [cut for cut in (interval.first, interval.last) if 0 < cut < calls]
        number = 1 if interval.first > 0 else 0
        return cut_stage(self._captured, cuts, number, self.intervals.roles)

    def _settings(self, captured: CapturedModel, devices: int) -> Settings:
        rows = self._rows or -1
        # The dim of what a stage takes whose rows are shared out to its devices.
        dims = {s.names[0]: _dim_of(s.placeholder.meta.get("val"), rows) for s in captured.inputs}
        own = of_part(self._task, captured, self._count, devices)
        return settings_of_part(own, dims, devices, self._shares(devices), 1)

    def _shares(self, devices: int) -> RowShares:
        return RowShares.of(self._task, devices, self._rows)

    @cached_property
    def _rows(self) -> int:
        return batch_rows(self._captured, self._task.whole_inputs)

    def transfer_s(self, stage: int, sent_bytes: int, stages: int) -> float:
        """Of what a device sends to the next stage, and of the gradients that it gets back."""
        if stages not in self._transfers:
            self._transfers[stages] = Transfers(self._task, self._count, stages)
        share = self._share(sent_bytes, stages)
        return 2 * self._transfers[stages].seconds(stage % stages, share)

    def held_bytes(self, stage: int, interval: Interval, stages: int) -> float:
        """What a device holds of what crosses the cuts of a stage."""
        received, sent = (
            self._share(num_bytes, stages)
            for num_bytes in (interval.received_bytes, interval.sent_bytes)
        )
        return held_bytes(self.flight(stage, stages), self._micro_batches, received, sent)

    def _share(self, sent_bytes: int, stages: int) -> float:
        """What one device has of what crosses a cut."""
        return sent_bytes / self._shares(self._count // stages).count


class _StageSpaces:
    """The strategies of what stages may be: a space for those that are alike, whose tables of
    costs all numbers in flight share."""

    def __init__(
        self, graph: MicroBatchGraph, stages: int, offered: Sequence[tuple[int, Interval]]
    ) -> None:
        self._graph = graph
        self._stages = stages
        self._flights: defaultdict[Hashable, set[int]] = defaultdict(set)
        for stage, interval in offered:
            self._flights[interval.alike].add(graph.flight(stage, stages))
        self._spaces: dict[Hashable, _C.SearchSpace | None] = {}
        self._frontiers: dict[Hashable, Points] = {}

    def key(self, stage: int, interval: Interval) -> Hashable:
        """Equal for stages of one frontier."""
        return self._graph.flight(stage, self._stages), interval.alike

    def frontier(self, stage: int, interval: Interval, use: Use) -> Points:
        """What is of use of it, in bytes and seconds. What is known is no part of the search:
        products are a dozen times as many with points among them that are not near its own."""
        if use.limit == 0:
            return []
        key = self.key(stage, interval)
        if key not in self._frontiers:
            found = self._searched(stage, interval, use.limit)
            self._frontiers[key] = [point for point in found if not is_matched(point, use.others)]
        return self._frontiers[key]

    def _searched(self, stage: int, interval: Interval, limit: float) -> Points:
        try:
            space = self._space(interval)
            flight = self._graph.flight(stage, self._stages)
            held = self._graph.held_bytes(stage, interval, self._stages)
            return self._graph.searched(space, flight, limit, held) if space else []
        except TensorOptError as error:
            log.info("no stage of calls %d to %d: %s", interval.first, interval.last, error)
            return []

    def _space(self, interval: Interval) -> _C.SearchSpace | None:
        if interval.alike not in self._spaces:
            self._spaces[interval.alike] = None
            tables = self._graph.spaces.space(
                self._stages,
                interval.alike,
                lambda: self._graph.stage_space(self._stages, interval),
            )
            threads = self._graph.search.num_threads
            flights = self._flights[interval.alike]
            self._spaces[interval.alike] = tables.with_tables(flights, threads)
        return self._spaces[interval.alike]


@cache
def _flights(
    schedule: ScheduleName, stages: int, micro_batches: int, chunks: int
) -> tuple[int, ...]:
    parts = range(stages * chunks)
    return tuple(in_flight(schedule, part, stages, micro_batches, chunks) for part in parts)


def _dim_of(value: object, rows: int) -> int | None:
    """The dim of a value that has so many rows; the first one, if several have."""
    if not isinstance(value, torch.Tensor):
        return None
    return next((dim for dim, size in enumerate(value.shape) if size == rows), None)
