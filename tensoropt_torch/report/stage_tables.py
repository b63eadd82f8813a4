"""Plans in stages: a table of the stages, and a picture of a step as it was simulated."""

from __future__ import annotations

from rich.table import Table

from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.planner.stage_timeline import timeline_of
from tensoropt_torch.program.stage_schedules import RunForward
from tensoropt_torch.program.stage_times import Timeline
from tensoropt_torch.telling.stages import COLUMNS, stage_rows
from tensoropt_torch.units import format_seconds

WIDTH = 96  # characters of a picture


def stages_table(plan: StagedPlan) -> Table:
    """A row for each stage: its parameters from which to which, what it takes alone, what a
    device needs by sums and by its simulated peak, how many micro-batches are in flight in each
    of its parts, and the share of the step in which it computes nothing."""
    step = timeline_of(plan)
    title = (
        f"{plan.stages} stages, {plan.micro_batches} micro-batches, {plan.schedule}: "
        f"{format_seconds(plan.time_s)} a step, {step.bubble:.0%} of it waits"
    )
    table = Table(title=title)
    for column in COLUMNS:
        table.add_column(column)
    for row in stage_rows(plan):
        table.add_row(*row.cells)
    return table


def picture_of(step: Timeline, width: int = WIDTH) -> str:
    """A line of each stage in time: digits are the micro-batches of forwards (their last digit),
    letters those of backwards (``a`` is the first), dots are waits."""
    lines = []
    for stage in range(len(step.busy_s)):
        line = ["."] * width
        for span in step.spans:
            if span.stage != stage:
                continue
            first, last = (round(at / step.step_s * width) for at in (span.begin_s, span.end_s))
            is_forward = isinstance(span.action, RunForward)
            mark = _mark(span.action.micro_batch, is_forward)
            line[first:last] = [mark] * (last - first)
        lines.append(f"stage {stage} {''.join(line)}")
    return "\n".join(lines)


def _mark(micro_batch: int, is_forward: bool) -> str:
    return str(micro_batch % 10) if is_forward else chr(ord("a") + micro_batch % 26)
