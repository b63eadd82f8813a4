"""Published rows in stages beside predictions of the same stages on the same machines.

    python -m benchmarks.published.stages --rows 57 58

The rows are Megatron-LM's GPTs: tensor parallelism inside of machines, as many layers in each
stage, data parallelism with a sharded optimizer across. What is predicted has the same degrees,
stages and micro-batches (of one sequence for each data-parallel part), under 1F1B, with sharded
parameters at their fastest. Operations per second are counted as for other rows. Writes
benchmarks/results/published_stages.json, where other rows stay.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.published.predict import OPTIMIZER
from benchmarks.published.rows import cluster_of, read_rows
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.staging.grids import ByRoles, by_layers

RESULTS = Path(__file__).resolve().parents[1] / "results" / "published_stages.json"
SEQUENCE, VOCABULARY, TENSOR = 4096, 131072, 8
# By row: heads, width, layers, stages and sequences of a step, as the rows say.
SHAPES = {
    57: (64, 8192, 84, 2, 384),
    58: (80, 10240, 92, 4, 768),
    59: (96, 12288, 96, 6, 1152),
    60: (128, 16384, 96, 8, 1536),
    61: (144, 18432, 112, 16, 3072),
}


def predicted(number: int) -> dict[str, Any]:
    """Of a row: operations a second of a device, published and predicted, and bytes of a device."""
    heads, width, layers, stages, batch = SHAPES[number]
    row = next(row for row in read_rows()[0] if row.id == number)
    with torch.device("meta"):
        config = GPTConfig(VOCABULARY, SEQUENCE, layers, heads, width, tie_weights=False)
        model = gpt(config).bfloat16()
        tokens = tuple(torch.zeros(batch, SEQUENCE, dtype=torch.long) for _ in "xy")
    task = PlanningTask(capture(model, tokens), cluster_of(row), optimizer=OPTIMIZER)
    replicas = row.devices // (stages * TENSOR)
    find = ByRoles(task, "shard", math.inf, TENSOR)
    plan = by_layers(task, row.devices, stages, batch // replicas, find)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = (6 * parameters + 12 * layers * width * SEQUENCE) * batch * SEQUENCE
    published = float(row.published["speed"].partition(" ")[0]) * 1e12
    found = flops / plan.time_s / row.devices
    return {
        "model": row.model,
        "devices": row.devices,
        "stages": stages,
        "micro_batches": plan.micro_batches,
        "published_flops_per_s": published,
        "predicted_flops_per_s": found,
        "error": found / published - 1,
        "memory_gib": plan.memory_bytes / 2**30,
    }


def main() -> None:
    """Predicts rows, prints and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(SHAPES), choices=list(SHAPES))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for number in parser.parse_args().rows:
        known[str(number)] = found = predicted(number)
        print(number, found, flush=True)
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
