"""Frontiers, plans and profiles as text tables (rich)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.planner.constraint_costs import ConstraintCosts
from tensoropt_torch.planner.device_counts import ProfileRow
from tensoropt_torch.planner.points import (
    FRONTIER_COLUMNS,
    frontier_rows,
)
from tensoropt_torch.planner.tradeoffs import Tradeoffs
from tensoropt_torch.simulate import MemoryProfile
from tensoropt_torch.telling.description import PlanDescription
from tensoropt_torch.telling.diff import PlanDiff
from tensoropt_torch.telling.facts import facts_of
from tensoropt_torch.units import format_bytes, format_seconds


def frontier_table(
    points: Sequence[tuple[float, float]], title: str, rows: int = 12, chosen: float = -1.0
) -> Table:
    """(memory_bytes, time_s) points of a frontier, thinned to ``rows``; ends,
    knee and the point that needs ``chosen`` bytes are named."""
    table = Table(title=title)
    for column in FRONTIER_COLUMNS:
        table.add_column(column, justify="right")
    for row in frontier_rows(points, rows, chosen):
        table.add_row(*row)
    return table


def plan_table(description: PlanDescription) -> Table:
    """What a plan does with every operator and parameter."""
    sizes = " x ".join(map(str, description.sizes)) or "1"
    table = Table(
        title=f"Strategy on mesh {sizes}: one entry per mesh axis is the split factor of an "
        "operator, or the storage layout of a parameter"
    )
    for column in ("node", "operator", "config"):
        table.add_column(column)
    for choice in description.choices:
        table.add_row(choice.node, choice.operator, choice.config)
    return table


def facts_table(plan: Plan) -> Table:
    """What a plan is for and what it costs."""
    table = Table(title="Plan", show_header=False)
    for name, value in facts_of(plan):
        table.add_row(name, value)
    return table


def diff_table(diff: PlanDiff) -> Table:
    """What changes from one plan to another: costs, settings, operators and parameters."""
    table = Table(title=diff.title)
    for column in ("", "before", "after"):
        table.add_column(column)
    for change in diff.folded_changes:
        table.add_row(change.name, change.before, change.after)
    return table


def plan_summary(description: PlanDescription) -> str:
    """How often each kind of reshard and of tensor reuse occurs, how many operators run again
    in backward, and what micro-batches share, in one line."""
    kept = ", ".join(f"{count} keep {name}" for name, count in description.kept.items())
    resharded = f"{description.num_resharded} of {description.num_edges} edges are resharded"
    again = description.num_recomputed
    shared = (
        f"; {description.micro_batches} micro-batches, for which {description.num_held} parameters "
        f"are resharded once and {description.num_summed} gradients are reduced once"
    )
    parts = (
        resharded,
        f" ({kept})" if kept else "",
        f"; {again} operators run again in backward" if again else "",
        shared if description.micro_batches > 1 else "",
    )
    return "".join(parts)


def profile_table(rows: Sequence[ProfileRow]) -> Table:
    """The option ``profiling`` as a table: the rows of one call."""
    limit = format_bytes(rows[0].memory_limit)
    table = Table(title=f"Least step time with at most {limit} per device")
    for column in ("devices", "step time", "memory per device", "simulated peak", "feasible"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row.num_devices),
            format_seconds(row.time_s) if row.time_s is not None else "-",
            format_bytes(
                row.memory_bytes if row.memory_bytes is not None else row.least_memory_bytes
            ),
            "-" if row.peak_bytes is None else format_bytes(row.peak_bytes),
            "yes" if row.feasible else f"no: needs {format_bytes(row.least_memory_bytes)}",
        )
    return table


def comparison_table(comparison: Comparison) -> Table:
    """A row for each baseline and one for TensorOpt; times at the memory limit
    also as multiples of TensorOpt's."""
    limit = comparison.memory_limit
    ours = comparison.pick(comparison.ours)
    by = "sums" if comparison.picks is None else "simulated peaks"
    table = Table(
        title=f"{comparison.num_devices} devices, at most {format_bytes(limit)} per device by {by}"
    )
    columns = ("strategies", "least memory", "fastest", "within the limit", "of TensorOpt's")
    for column in (*columns, "simulated peak"):
        table.add_column(column, justify="left" if column == "strategies" else "right")
    for row in (*comparison.baselines, comparison.ours):
        point = comparison.pick(row)
        picked = comparison.picks and comparison.picks[row.name]
        table.add_row(
            row.title,
            format_bytes(row.points[0][0]) if row.points else "-",
            format_seconds(row.points[-1][1]) if row.points else "-",
            format_seconds(point[1]) if point else "does not fit",
            f"{point[1] / ours[1]:.2f}" if point and ours else "-",
            format_bytes(picked.peak_bytes) if picked else "-",
        )
    return table


def tradeoffs_table(tradeoffs: Tradeoffs, rows: Sequence[ProfileRow], memory_limit: float) -> Table:
    """For each number of devices the fastest strategy within the limit, which costs least there,
    or that none fits."""
    table = Table(
        title=f"The fastest step with at most {format_bytes(memory_limit)} per device, for each "
        f"number of devices ({tradeoffs.guarantee})"
    )
    columns = ("devices", "step time", "memory per device", "simulated peak")
    for column in (*columns, f"{tradeoffs.unit} of a step"):
        table.add_column(column, justify="right")
    for row in rows:
        if row.time_s is None or row.memory_bytes is None:
            least = f"needs {format_bytes(row.least_memory_bytes)}"
            table.add_row(str(row.num_devices), "nothing fits", least, "-", "-")
            continue
        table.add_row(
            str(row.num_devices),
            format_seconds(row.time_s),
            format_bytes(row.memory_bytes),
            "-" if row.peak_bytes is None else format_bytes(row.peak_bytes),
            f"{tradeoffs.cost(row.num_devices, row.time_s):.4g}",
        )
    return table


def memory_table(profile: MemoryProfile, rows: int = 20) -> Table:
    """Where the bytes go at the peak: the categories, then what operators hold."""
    table = Table(
        title=f"Rank {profile.rank} has at most {format_bytes(profile.peak_bytes)}, in "
        f"{profile.phase} during {profile.operator}"
    )
    for column in ("category", "operator", "node", "memory", "share"):
        table.add_column(column, justify="right" if column in ("memory", "share") else "left")
    for category, num_bytes in profile.categories.items():
        if num_bytes > 0:
            share = f"{num_bytes / profile.peak_bytes:.1%}"
            table.add_row(category, "", "", format_bytes(num_bytes), share)
    table.add_section()
    for usage in profile.usages[:rows]:
        share = f"{usage.num_bytes / profile.peak_bytes:.1%}"
        size = format_bytes(usage.num_bytes)
        table.add_row(usage.category, usage.operator, usage.node, size, share)
    return table


def constraint_table(costs: ConstraintCosts) -> Table:
    """What a user's constraints cost: the ends of the frontier and the fastest step within the
    memory limit, with all of them, without each, and without any."""
    limit = format_bytes(costs.memory_limit)
    table = Table(
        title="What the constraints cost, "
        f"searched in {format_seconds(costs.seconds)} (limit: {limit})"
    )
    table.add_column("constraints")
    for column in ("least memory", "least step time", "within the limit"):
        table.add_column(column, justify="right")
    for row in costs.rows:
        without = " and ".join(map(str, row.without))
        name = f"without {without}" if without else "all"
        fastest = "does not fit" if row.time_s is None else format_seconds(row.time_s)
        ends = format_bytes(row.least_memory_bytes), format_seconds(row.least_time_s)
        table.add_row("none" if row is costs.free else name, *ends, fastest)
    return table
