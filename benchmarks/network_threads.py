"""Step times with and without real-time priority of Gloo's threads.

    python benchmarks/network_threads.py --ranks 2 4

Random strategies of some models train in turn both ways, in the same processes: ratios
are those of one run. Needs the permission for real-time priorities. Writes
benchmarks/results/network_threads.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

import tensoropt_torch
from benchmarks.estimation_error import CPU, MODELS
from benchmarks.machine import machine
from benchmarks.ranks import WORKER, format_ratio, print_results, ratio_figures, results_of_ranks
from tensoropt_torch import emit
from tensoropt_torch.calibration.runs import OPTIMIZERS, time_steps
from tensoropt_torch.emit.parallelize import RankContext
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.options import PlanningTask
from tensoropt_torch.planner.space import make_planner, varied_strategy
from tensoropt_torch.profiler.store import write_atomically
from tensoropt_torch.scheduling import (
    NETWORK_THREADS,
    may_prioritise_network,
    prioritise_network,
)

RESULTS = Path(__file__).parent / "results" / "network_threads.json"
STRATEGIES = 5
PASSES = 3
STEPS = 8


def share_fairly() -> None:
    """Gloo's threads wait their turn, as they do without us."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() in NETWORK_THREADS:
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks: step times in s by strategy, and their ratios."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    captured = capture(model, args)
    settings = PlanningTask(captured, tensoropt_torch.load_cluster("cpu")).settings(
        dist.get_world_size()
    )
    planner = make_planner(captured, settings)
    context = RankContext.make([size for size, _ in settings.mesh_axes], CPU)
    rows = []
    for seed in range(STRATEGIES):
        plan = Plan.of(settings, captured, varied_strategy(planner, seed))
        module = emit.parallelize(model, captured, plan, CPU, context)
        step = partial(
            time_steps, module, OPTIMIZERS["adamw"](module), partial(module, *args), STEPS
        )
        fair, prioritised = [], []
        for _ in range(PASSES):
            share_fairly()
            fair.append(step().step_s)
            prioritise_network()
            prioritised.append(step().step_s)
        rows.append({"seed": seed, "fair_s": fair, "prioritised_s": prioritised})
    context.groups.close()
    ratios = [
        prioritised / fair
        for row in rows
        for fair, prioritised in zip(row["fair_s"], row["prioritised_s"], strict=True)
    ]
    return {**ratio_figures(ratios), "rows": rows}


def main() -> None:
    """Run the jobs, print the ratios, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print_results(measure, list(MODELS))
        return
    if not may_prioritise_network():
        raise SystemExit("real-time priorities are not permitted here: be root, or 'ulimit -r 1'")
    results: dict[str, Any] = {"machine": machine(), "ranks": {}}
    for ranks in arguments.ranks:
        results["ranks"][ranks] = results_of_ranks(__file__, ranks)
        for name, row in results["ranks"][ranks].items():
            print(f"{ranks} ranks, {name}: {format_ratio(row)}")
    write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
