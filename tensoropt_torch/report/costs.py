"""How well costs predict, as text."""

from __future__ import annotations

import math
from typing import get_args

from rich.table import Table

from tensoropt_torch.config import DeviceType
from tensoropt_torch.measure.runs.validation import DISTURBED_SPREAD, Validation
from tensoropt_torch.planner.memory_limits import Predictor, default_memory_fraction
from tensoropt_torch.units import format_bytes, format_seconds


def validation_table(validation: Validation) -> Table:
    """Predicted next to measured, for every strategy that was run."""
    table = Table(
        title="Random strategies: predicted / measured (memory: sum / simulated / measured peak)"
    )
    for column in ("seed", "step time", "spread", "network time", "memory per device"):
        table.add_column(column, justify="right")
    for row in validation.rows:
        table.add_row(
            str(row.seed),
            f"{format_seconds(row.step_s)} / {format_seconds(row.measured_step_s)}",
            "-" if row.spread is None else _share(row.spread),
            f"{format_seconds(row.network_s)} / {format_seconds(row.measured_network_s)}",
            f"{format_bytes(row.memory_bytes)} / {_bytes(row.simulated_bytes)} / "
            f"{format_bytes(row.measured_memory_bytes)}",
        )
    times = [_share(validation.step_error), "", _share(validation.network_error)]
    memory = [validation.memory_error("sums"), validation.memory_error("simulated")]
    table.add_section()
    table.add_row("mean error", *times, " / ".join(map(_share, memory)))
    return table


def validation_summary(validation: Validation, device: DeviceType) -> str:
    """The rank correlation, the memory limits that follow on such devices, and how much
    runs differ by themselves."""
    sums, peaks = (
        f"{validation.memory_fraction(name, default_memory_fraction(name, device)):.0%}"
        for name in get_args(Predictor)
    )
    ended = "" if validation.asked is None else f"{validation.amount} within the budget; "
    return (
        f"{ended}rank correlation of step times (Spearman): {_correlation(validation)}; of the "
        f"device's memory sums may fill {sums}, simulated peaks {peaks}{_noise(validation)}"
    )


def _noise(validation: Validation) -> str:
    """How far measurements themselves are to be believed; empty for single runs."""
    if math.isnan(validation.spread):
        return ""
    text = f"\ntwo runs of the same strategy differ by {_share(validation.spread)} on average"
    calm = validation.undisturbed()
    disturbed = len(validation.rows) - len(calm.rows)
    if disturbed:
        text += (
            f"; without the {disturbed} that differ by more than {DISTURBED_SPREAD:.0%}: mean "
            f"error of the step time {_share(calm.step_error)}, of the network time "
            f"{_share(calm.network_error)}, rank correlation {_correlation(calm)}"
        )
    return text


def _correlation(validation: Validation) -> str:
    correlation = validation.rank_correlation
    return "not defined" if math.isnan(correlation) else f"{correlation:.3f}"


def _bytes(count: float | None) -> str:
    return "-" if count is None else format_bytes(count)


def _share(number: float) -> str:
    return "-" if math.isnan(number) else f"{number:.1%}"
