"""Why a plan in stages is what it is: what each stage waits for, and the decisions of its parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.planner.why import MemoryChange, WhyPlan, explain_plan, memory_changes
from tensoropt_torch.telling.stages import StageRow, stage_rows
from tensoropt_torch.units import format_bytes, format_seconds


@dataclass(frozen=True)
class WhyStages:
    """Why a plan in stages is what it is; as text in plain sentences.

    Attributes:
        plan: that is explained.
        parts: why the strategies of its parts are what they are, each within the memory that it
            has: what a part saves is of that part alone.
        memory: the nearest points of the frontier that are noteworthy, as of ``WhyPlan``.
    """

    plan: StagedPlan
    parts: tuple[WhyPlan, ...]
    memory: tuple[MemoryChange, ...]

    @property
    def sentences(self) -> list[str]:
        """Of the stages, then of what other memory buys."""
        return [*_of_stages(self.plan), *(change.sentence(self.plan) for change in self.memory)]

    def __str__(self) -> str:
        lines = [str(self.plan), *(f"- {sentence}" for sentence in self.sentences)]
        for number, part in enumerate(self.parts):
            lines.append(f"Part {number}, of stage {number % self.plan.stages}:")
            lines += [f"  {line}" for line in str(part).splitlines()]
        return "\n".join(lines)


def explain_stages(plan: StagedPlan, search: SearchSettings | None = None) -> WhyStages:
    """As ``explain_plan``, part by part.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    parts = tuple(
        explain_plan(part, search, dict(own.storage) or None)
        for own, part in zip(plan.parts, plan.plans, strict=True)
    )
    return WhyStages(plan, parts, tuple(memory_changes(plan)))


def _of_stages(plan: StagedPlan) -> Iterator[str]:
    rows = stage_rows(plan)
    busiest = max(rows, key=lambda row: row.alone_s)
    least = min(rows, key=lambda row: row.alone_s)
    largest = max(rows, key=lambda row: row.memory_bytes)
    yield (
        f"Stage {busiest.number} has most to do, {format_seconds(busiest.alone_s)} of a step of "
        f"{format_seconds(plan.time_s)}: it waits for {busiest.waits:.0%} of it, as pipelines of "
        f"{plan.stages} stages do for about {_bubble(plan):.0%} with {plan.micro_batches} "
        "micro-batches."
    )
    if least.alone_s < 0.95 * busiest.alone_s:
        yield (
            f"Stage {least.number} has least to do, {format_seconds(least.alone_s)}, and waits for "
            f"{least.waits:.0%}: cuts that share the work out evenly may cross where more is sent."
        )
    yield f"Stage {largest.number} needs the most memory, {_memory(largest)}."
    sent = sum(there + back for there, back in plan.sent_s)
    yield (
        f"What crosses the cuts takes {format_seconds(sent)} for a micro-batch and its gradients, "
        "on all of them together."
    )


def _bubble(plan: StagedPlan) -> float:
    """The share of a step of equal stages in which each waits."""
    waits = (plan.stages - 1) / (1 if plan.schedule != "interleaved" else plan.chunks)
    return waits / (plan.micro_batches + waits)


def _memory(row: StageRow) -> str:
    flights = sum(row.in_flight)
    batches = "one micro-batch is" if flights == 1 else f"{flights} micro-batches are"
    return f"{format_bytes(row.memory_bytes)} per device, where {batches} in flight"
