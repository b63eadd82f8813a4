"""What a step of a plan in stages takes: its actions run in time (``program/stage_times.py``), and
the lanes that a page draws of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.program.stage_schedules import RunForward, schedules_of
from tensoropt_torch.program.stage_times import StageTimes, Timeline, timeline
from tensoropt_torch.telling.timeline import FORWARD_SHARE
from tensoropt_torch.units import format_seconds


def timeline_of(plan: StagedPlan) -> Timeline:
    """Of a step."""
    both = [part.plan.time_s / plan.micro_batches for part in plan.parts]
    times = StageTimes(
        tuple(FORWARD_SHARE * seconds for seconds in both),
        tuple((1 - FORWARD_SHARE) * seconds for seconds in both),
        tuple(values for values, _ in plan.sent_s),
        tuple(gradients for _, gradients in plan.sent_s),
    )
    return timeline(
        schedules_of(plan.schedule, plan.stages, plan.micro_batches, plan.chunks), times
    )


@dataclass(frozen=True)
class LanePiece:
    """A forward or backward in the lane of a stage: shares of the step."""

    begin: float
    width: float
    is_forward: bool
    micro_batch: int
    title: str


@dataclass(frozen=True)
class StageLane:
    """When a stage does what.

    Attributes:
        order: its forwards and backwards, such as ``F0 F1 B0``; chunks follow a dot.
    """

    stage: int
    pieces: Sequence[LanePiece]
    order: str


def lanes_of(plan: StagedPlan) -> list[StageLane]:
    """Of all stages."""
    step = timeline_of(plan)
    schedules = schedules_of(plan.schedule, plan.stages, plan.micro_batches, plan.chunks)
    lanes: list[list[LanePiece]] = [[] for _ in schedules]
    for span in step.spans:
        is_forward = isinstance(span.action, RunForward)
        kind = "forward" if is_forward else "backward"
        chunk = f" of part {span.action.chunk}" if plan.chunks > 1 else ""
        at = f"{format_seconds(span.begin_s)} to {format_seconds(span.end_s)}"
        lanes[span.stage].append(
            LanePiece(
                span.begin_s / step.step_s,
                (span.end_s - span.begin_s) / step.step_s,
                is_forward,
                span.action.micro_batch,
                f"{kind} of micro-batch {span.action.micro_batch}{chunk}: {at}",
            )
        )
    return [
        StageLane(schedule.stage, pieces, str(schedule))
        for schedule, pieces in zip(schedules, lanes, strict=True)
    ]
