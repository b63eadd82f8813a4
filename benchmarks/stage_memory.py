"""What stages buy where memory is short: the fastest plan with and without, within less and less of
a device's memory.

    python -m benchmarks.stage_memory

Llama 3.2 1B on two machines of four devices (``rtx4090-4``) that 10 Gbit/s join, with AdamW and
recomputation; memory is compared with sums. Plans, and runs nothing. Writes
benchmarks/results/stage_memory.json and the table of docs/stages.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.page import fill_tables
from tensoropt_torch import Cluster, OptimizerModel, PlanningOptions, find_frontier, load_cluster
from tensoropt_torch.advising.table import markdown_table
from tensoropt_torch.model_configs import BatchSize, example_of_config
from tensoropt_torch.units import format_bytes, format_duration

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "stage_memory.json"
PAGE = ROOT / "docs" / "stages.md"

CLUSTER = "rtx4090-4"
DEVICES = 8
BETWEEN = {"bandwidth_bytes_per_s": 1.25e9, "latency_s": 3e-5, "collectives": {}}
MODEL = (
    "hf:llama,hidden_size=2048,num_hidden_layers=16,num_attention_heads=32,"
    "intermediate_size=8192,num_key_value_heads=8,vocab_size=128256,dtype=bfloat16"
)
BATCH = BatchSize(32, 2048)
MOST = {"max_micro_batches": 8, "max_stages": 2}
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)  # of a device's memory


def cluster() -> Cluster:
    """The preset, twice."""
    found = load_cluster(CLUSTER)
    outer = replace(found.levels[0], name="machine", count=2, **BETWEEN)
    return replace(found, levels=(outer, *found.levels))


def frontier_of(max_stages: int) -> tuple[list[dict[str, Any]], float]:
    """The points, and the seconds of processor time that the search took."""
    example = example_of_config(MODEL, BATCH)
    options = PlanningOptions(
        cluster=cluster(),
        recompute=True,
        optimizer=OptimizerModel("adamw", "float32", True),
        memory="sums",
        max_micro_batches=MOST["max_micro_batches"],
        max_stages=max_stages,
    )
    began = time.process_time()
    found = find_frontier(example, num_devices=DEVICES, planning=options)
    points = [
        {
            "memory_bytes": point.memory_bytes,
            "time_s": point.time_s,
            "stages": point.stages,
            "micro_batches": point.micro_batches,
        }
        for point in found
    ]
    return points, time.process_time() - began


def fastest(points: list[dict[str, Any]], limit: float) -> dict[str, Any] | None:
    """Within so many bytes of a device; None: none is."""
    within = [point for point in points if point["memory_bytes"] <= limit]
    return min(within, key=lambda point: point["time_s"], default=None)


def rows_of(found: dict[str, Any]) -> Iterator[list[str]]:
    """Of the table."""
    for share in SHARES:
        limit = share * found["device_bytes"]
        without, with_stages = (fastest(found[kind], limit) for kind in ("without", "with"))
        gain = "-"
        if without is not None and with_stages is not None:
            gain = f"{with_stages['time_s'] / without['time_s']:.2f}"
        yield [f"{share:.2f} ({format_bytes(limit)})", _cell(without), _cell(with_stages), gain]


def _cell(point: dict[str, Any] | None) -> str:
    if point is None:
        return "none fits"
    stages, count = point["stages"], point["micro_batches"]
    how = f"{stages} stages, " if stages > 1 else ""
    return f"{format_duration(point['time_s'])} ({how}{count} micro-batches)"


def main() -> None:
    """Both frontiers, the JSON and the table."""
    without, seconds = frontier_of(1)
    with_stages, more = frontier_of(MOST["max_stages"])
    found: dict[str, Any] = {
        "machine": machine(),
        "cluster": f"2 x {CLUSTER}, 10 Gbit/s",
        "model": MODEL,
        "batch": str(BATCH),
        "device_bytes": load_cluster(CLUSTER).device.memory_bytes,
        "processor_s": {"without": seconds, "with": more},
        "without": without,
        "with": with_stages,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    columns = ["of a device's memory", "fastest without stages", "with stages", "ratio of times"]
    table = markdown_table(list(rows_of(found)), columns)
    print(table)
    fill_tables(PAGE, {"stage_memory": table})


if __name__ == "__main__":
    main()
