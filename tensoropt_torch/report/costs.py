"""Where costs are from, and how well they predict, as text."""

from __future__ import annotations

import math

from rich.table import Table

from tensoropt_torch.calibration.validation import Validation
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.frontier import format_bytes
from tensoropt_torch.report.tables import format_seconds


def provenance(settings: Settings) -> list[str]:
    """For each kind of figure where it is from, a line each."""
    cluster = parse_cluster(settings.cluster, "settings")
    device = cluster.device
    lines = [f"device '{device.name}': {device.source}", f"efficiency: {device.efficiency.source}"]
    covered = sorted({axes for _, axes, _ in settings.measured})
    if covered:
        sets = 2 ** len(settings.mesh_axes) - 1
        lines.append(f"collectives: measured over {len(covered)} of {sets} sets of mesh axes")
    else:
        levels = {level for _, level in settings.mesh_axes}
        lines += [
            f"collectives inside level '{level.name}': computed from its bandwidth and latency: "
            f"{level.source}"
            for index, level in enumerate(cluster.levels)
            if index in levels
        ]
    operators = len(settings.operators)
    if operators:
        lines.append(f"operators: {operators} calls measured, others predicted from these")
    else:
        lines.append("operators: computed from the device's figures (roofline)")
    lines.append(f"runtime: {device.runtime.source}")
    return lines


def validation_table(validation: Validation) -> Table:
    """Predicted next to measured, for every strategy that was run."""
    table = Table(title="Random strategies: predicted / measured")
    for column in ("seed", "step time", "network time", "peak memory per device"):
        table.add_column(column, justify="right")
    for row in validation.rows:
        table.add_row(
            str(row.seed),
            f"{format_seconds(row.step_s)} / {format_seconds(row.measured_step_s)}",
            f"{format_seconds(row.network_s)} / {format_seconds(row.measured_network_s)}",
            f"{format_bytes(row.memory_bytes)} / {format_bytes(row.measured_memory_bytes)}",
        )
    errors = (validation.step_error, validation.network_error, validation.memory_error)
    table.add_section()
    table.add_row("mean error", *("-" if math.isnan(error) else f"{error:.1%}" for error in errors))
    return table


def validation_summary(validation: Validation) -> str:
    """The rank correlation and the memory limit that follows."""
    correlation = validation.rank_correlation
    text = "not defined" if math.isnan(correlation) else f"{correlation:.3f}"
    return (
        f"rank correlation of step times (Spearman): {text}; default memory limit: "
        f"{validation.memory_fraction:.0%} of the device's memory"
    )
