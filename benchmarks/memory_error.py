"""How far simulated peaks of memory are from measured ones, on random strategies.

    python benchmarks/memory_error.py --models mlp gpt --devices 1 2 4 --strategies 5
    python benchmarks/memory_error.py --models gpt --devices 2 4 --stages 2 --micro-batches 8

Seeds are 0, 1, ...: no strategy is chosen. Writes
benchmarks/results/memory_error.json, where other models and numbers of devices stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.machine import machine  # noqa: E402
from benchmarks.memory.job import Job  # noqa: E402
from benchmarks.memory.measure import Row, compare  # noqa: E402
from benchmarks.memory.models import MODELS  # noqa: E402
from tensoropt_torch.program.stage_schedules import ScheduleName  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "memory_error.json"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Errors of the simulation and of the sum that the search uses."""
    errors = [abs(row.error) for row in rows]
    sums = [abs(row.search_bytes / row.measured_bytes - 1) for row in rows]
    return {
        "model": rows[0].model,
        "devices": rows[0].num_devices,
        "recompute": rows[0].recompute,
        "micro_batches": rows[0].micro_batches,
        "stages": rows[0].stages,
        "schedule": rows[0].schedule,
        "peaks": len(rows),
        "exact": sum(error == 0 for error in errors),
        "mean_error": sum(errors) / len(errors),
        "max_error": max(errors),
        "mean_error_of_sum": sum(sums) / len(sums),
        "highest_over_least_step": max(row.highest_bytes / row.measured_bytes for row in rows),
    }


def main() -> None:
    """Measure the models that are named, print the errors, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--strategies", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=450.0, help="seconds for one job")
    parser.add_argument("--recompute", action="store_true", help="strategies that recompute")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a step")
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--schedule", default="1f1b", choices=get_args(ScheduleName))
    parser.add_argument("--chunks", type=int, default=1, help="of a stage")
    options = parser.parse_args()
    table = Table(title="Error of the peak memory per rank")
    columns = (
        "model",
        "devices",
        "recompute",
        "micro-batches",
        "stages",
        "schedule",
        "peaks",
        "exact",
        "mean",
        "largest",
        "mean of the sum",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for model in options.models:
        for count in options.devices:
            seeds = tuple(range(options.strategies))
            job = Job(
                model,
                count,
                seeds,
                recompute=options.recompute,
                micro_batches=options.micro_batches,
                stages=options.stages,
                schedule=options.schedule,
                chunks=options.chunks,
            )
            found = compare(job, options.timeout)
            figures = list(summary(found).values())
            table.add_row(*map(str, figures[:8]), *(f"{figure:.3%}" for figure in figures[8:11]))
            keep(found)
    Console().print(table)


def keep(found: Sequence[Row]) -> None:
    """Put these peaks of one model on one number of devices into the result."""
    old = json.loads(RESULT.read_text()) if RESULT.exists() else {"runs": [], "peaks": []}
    new = {"runs": [summary(found)], "peaks": [asdict(row) for row in found]}
    record: dict[str, Any] = {"machine": machine()}
    for name, device_key in (("runs", "devices"), ("peaks", "num_devices")):
        which = _kind(new[name][0], device_key)
        others = [row for row in old[name] if _kind(row, device_key) != which]
        record[name] = others + new[name]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


def _kind(row: dict[str, Any], device_key: str) -> tuple[object, ...]:
    """What rows of one run have in common."""
    return (
        row["model"],
        row[device_key],
        row.get("recompute", False),
        row.get("micro_batches", 1),
        row.get("stages", 1),
        row.get("schedule", "1f1b"),
    )


if __name__ == "__main__":
    main()
