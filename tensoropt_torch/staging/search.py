"""The frontier of plans in stages: where the model is cut, into how many stages, in how many
micro-batches a step runs, and by which schedule.

::

    found = pipelines(task, SearchedStages(8, (2, 4, 8, 16)), 64)
    for one in found.points:  # by ascending memory
        one.memory_bytes, one.time_s, one.stages, one.cuts

A frontier of strategies is searched for each interval of calls that a stage may be, once for those
that are alike, for the number of micro-batches that are in flight there
(``micro_batch_graph.py``). These are composed (``csrc/pipeline/composition.h``): within a cap on
memory every stage takes its fastest strategy, and what is left are the cuts.

By the interleaved schedule, which waits less, stages have several chunks. It is searched where
others of as many stages and micro-batches pay. Pipelines by it are composed as if all parts were
alike and are told as they are simulated; what is proved of the frontier is of 1F1B and GPipe.

What is known rules out the most. A number of stages and of micro-batches is left out if no
pipeline of them can beat it; else the least memory and time of each interval say how long it may
take in a pipeline that does (``csrc/pipeline/stage_limits.h``), so up to which memory it matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensoropt_torch.batches import doubled, micro_batched
from tensoropt_torch.checks import check_whole
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Guarantee
from tensoropt_torch.planner.memory_limits import recompute_advice
from tensoropt_torch.planner.searched import Points, weakest
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.program.stage_schedules import ScheduleName
from tensoropt_torch.progress import progress
from tensoropt_torch.staging.micro_batch_graph import FoundPipeline, MicroBatchGraph
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.units import format_bytes

log = get_logger(__name__)

PROVED: tuple[ScheduleName, ...] = ("1f1b", "gpipe")
SCHEDULES: tuple[ScheduleName, ...] = (*PROVED, "interleaved")
CHUNKS = (2, 4)  # of each stage, by the interleaved schedule


@dataclass(frozen=True)
class Pipelines:
    """A frontier.

    Attributes:
        points: by ascending memory, none beaten.
        guarantee: what holds for them together with what was known, of pipelines by 1F1B and
            GPipe.
    """

    points: tuple[FoundPipeline, ...]
    guarantee: Guarantee


@dataclass(frozen=True)
class SearchedStages:
    """What is searched.

    Attributes:
        max_stages: powers of two up to it are tried.
        micro_batches: the numbers of them that are tried.
        schedules: those that are tried, 1F1B first.
        chunks: the numbers of them in each stage that are tried by the interleaved schedule.
    """

    max_stages: int
    micro_batches: tuple[int, ...]
    schedules: tuple[ScheduleName, ...] = SCHEDULES
    chunks: tuple[int, ...] = CHUNKS

    def __post_init__(self) -> None:
        check_whole("max_stages", self.max_stages, least=2)
        for number in self.micro_batches:
            check_whole("micro_batches", number, least=1)

    @staticmethod
    def of(
        max_stages: int,
        micro_batches: int | None,
        max_micro_batches: int,
        schedule: ScheduleName | None = None,
        chunks: int = 1,
    ) -> SearchedStages:
        """With this number of micro-batches, or powers of two up to ``max_micro_batches``; with
        this schedule, or any; with so many chunks, or with 1 any."""
        numbers = (1, *doubled(max_micro_batches)) if micro_batches is None else (micro_batches,)
        schedules = SCHEDULES if schedule is None else (schedule,)
        return SearchedStages(max_stages, numbers, schedules, CHUNKS if chunks == 1 else (chunks,))


def searched_options(
    task: PlanningTask, wanted: SearchedStages, count: int, limit: float
) -> StageOptions:
    """The fastest pipeline within the memory limit, in bytes of a device.

    Raises:
        TensorOptError: the model cannot be cut into stages, or none fits.
    """
    found = pipelines(task, wanted, count, limit).points
    if not found:
        only = ""
        if wanted.schedules == ("interleaved",):
            only = " by the interleaved schedule, which takes multiples of the number of stages"
        raise TensorOptError(
            f"no plan in up to {wanted.max_stages} stages on {count} devices, of "
            f"{', '.join(map(str, wanted.micro_batches))} micro-batches{only}, needs at most "
            f"{format_bytes(limit)} per device; {recompute_advice(task.recompute)}raise "
            "max_micro_batches or max_stages, use more devices, or give stages= to see what is in "
            "the way of one"
        )
    return found[-1].options


def pipelines(
    task: PlanningTask,
    wanted: SearchedStages,
    count: int,
    memory_limit: float = math.inf,
    pick_limits: Sequence[float] = (),
    known: Points = (),
) -> Pipelines:
    """The frontier on so many devices, none of it above the limit; without points if the model
    cannot be cut so.

    Args:
        pick_limits: bytes per device by which points will be picked.
        known: (bytes, seconds) of strategies without stages, with which the result will be
            united: what one of them stands for is not looked for.
    """
    numbers = _numbers(task, wanted.max_stages, count)
    graphs = {graph.micro_batches: graph for graph in task.in_micro_batches}
    found: list[FoundPipeline] = []
    beside = list(known)
    guarantees: list[Guarantee] = []
    total = len(numbers) * len(wanted.micro_batches)
    with progress("searching stages", total, ticking=True) as done:
        # Most micro-batches wait least: what they give rules out most of the others.
        for micro_batches in sorted(wanted.micro_batches, reverse=True):
            try:
                captured = graphs.get(micro_batches) or micro_batched(
                    task.captured, micro_batches, task.whole_inputs
                )
            except TensorOptError as error:
                log.info("no stages with %d micro-batches: %s", micro_batches, error)
                done(more=len(numbers))
                continue
            graph = MicroBatchGraph(task, count, captured, memory_limit, pick_limits)
            by_name = {name: graph.under(name) for name in wanted.schedules if name in PROVED}
            for stages in numbers:
                done(f"{stages} stages, {micro_batches} micro-batches", more=0)
                is_taken = not by_name
                for name, under in by_name.items():
                    if name == "gpipe" and _is_gpipe_ruled_out(by_name.get("1f1b"), stages, beside):
                        continue
                    so_far = _unbeaten_points(beside)
                    if not under.may_pay(stages, so_far):
                        continue
                    several = under.pipelines(stages, so_far)
                    is_taken = is_taken or bool(several)
                    beside += [(one.memory_bytes, one.time_s) for one in several]
                    found += several
                if is_taken and "interleaved" in wanted.schedules:
                    several = _interleaved(graph, stages, wanted.chunks, beside)
                    beside += [(one.memory_bytes, one.time_s) for one in several]
                    found += several
                done()
            guarantees += [under.guarantee for under in by_name.values()]
    return Pipelines(tuple(_unbeaten(found)), weakest([Guarantee(), *guarantees]))


def _numbers(task: PlanningTask, most: int, count: int) -> list[int]:
    """Of stages: powers of two that divide the devices, or what is pinned.

    Raises:
        TensorOptError: no number is left.
    """
    pins = task.stage_pins
    asked = doubled(most) if pins.number is None else [pins.number]
    numbers = [number for number in asked if count % number == 0 and pins.allows(number)]
    if pins and not numbers:
        raise TensorOptError(
            f"{pins}: {count} devices cannot be shared out to so many stages; give a number that "
            "divides them"
        )
    return numbers


def _interleaved(
    graph: MicroBatchGraph, stages: int, chunks: Sequence[int], beside: Points
) -> list[FoundPipeline]:
    """By the interleaved schedule, where its rounds of as many micro-batches as there are stages
    are full."""
    found: list[FoundPipeline] = []
    if graph.micro_batches % stages or graph.is_pinned:
        return found
    for number in chunks:
        under = graph.under("interleaved", number)
        own = [(one.memory_bytes, one.time_s) for one in found]
        known = _unbeaten_points([*beside, *own])
        if under.may_pay(stages, known):
            found += under.pipelines(stages, known)
    return found


def _is_gpipe_ruled_out(by_1f1b: MicroBatchGraph | None, stages: int, found: Points) -> bool:
    """By what was found of these stages by 1F1B, and of others."""
    if by_1f1b is None or not found:
        return False
    return by_1f1b.rules_out_gpipe(stages, min(time for _, time in found))


def _unbeaten(found: Iterable[FoundPipeline]) -> list[FoundPipeline]:
    kept: list[FoundPipeline] = []
    for pipeline in sorted(found, key=lambda one: (one.memory_bytes, one.time_s)):
        if not kept or pipeline.time_s < kept[-1].time_s:
            kept.append(pipeline)
    return kept


def _unbeaten_points(points: Points) -> Points:
    kept: list[tuple[float, float]] = []
    for memory, time in sorted(points):
        if not kept or time < kept[-1][1]:
            kept.append((memory, time))
    return kept
