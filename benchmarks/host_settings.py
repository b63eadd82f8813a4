"""Step times with and without what the runtime can ask of a CPU host.

    python benchmarks/host_settings.py --ranks 2 4

The settings are a larger share of the cores for Gloo's threads, which has to be asked for,
and memory that the process keeps after it is freed, which is the default. Jobs with the
default settings, and with one of them changed, train random strategies of some models, in
turn and several times: ratios are those of jobs that follow each other. Needs the permission
for negative nice values. Writes benchmarks/results/host_settings.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import tensoropt_torch
from benchmarks.machine import machine
from benchmarks.models.small import STUDY
from benchmarks.ranks import WORKER, format_ratio, print_results, ratio_figures, results_of_ranks
from benchmarks.training import Trainer
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.host import memory, scheduling

RESULTS = Path(__file__).parent / "results" / "host_settings.json"
STRATEGIES = 5
PASSES = 4
STEPS = 8

# By name: what changes it, and whether that turns it on.
SETTINGS = {
    "favoured_network": ({scheduling.ASKED: "1"}, True),
    "kept_memory": ({memory.OFF: "0"}, False),
}
DEFAULT = {scheduling.ASKED: "0"}


def measure(name: str) -> list[float]:
    """Step times of one model's strategies in s, on all ranks."""
    torch.manual_seed(0)
    model, args = STUDY[name].make()
    task = PlanningTask(capture(model, args), tensoropt_torch.load_cluster("cpu"))
    trainer = Trainer(model, args, task)
    plans = trainer.random_plans(STRATEGIES)
    found = [trainer.start(plan).times(STEPS).step_s for plan in plans]
    trainer.close()
    return found


def compared(ranks: int, passes: int) -> dict[str, Any]:
    """By model and setting the ratios of the times with it to those without it; the times
    with the default settings, and with this one changed, in s, by pass and strategy."""
    variants = {"default": DEFAULT}
    variants |= {name: {**DEFAULT, **change} for name, (change, _) in SETTINGS.items()}
    jobs: list[dict[str, dict[str, list[float]]]] = [
        {
            variant: results_of_ranks(__file__, ranks, environment=environment)
            for variant, environment in variants.items()
        }
        for _ in range(passes)
    ]
    found: dict[str, Any] = {}
    for model in STUDY:
        default = [job["default"][model] for job in jobs]
        found[model] = {"default_s": default}
        for setting, (_, turned_on) in SETTINGS.items():
            changed = [job[setting][model] for job in jobs]
            pairs = zip(chain(*changed), chain(*default), strict=True)
            ratios = [new / old if turned_on else old / new for new, old in pairs]
            found[model][setting] = {**ratio_figures(ratios), "changed_s": changed}
    return found


def main() -> None:
    """Run the jobs, print the ratios, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print_results(measure, list(STUDY))
        return
    if not scheduling.is_permitted():
        raise SystemExit(f"nice values of {scheduling.NICE} are not permitted here: be root")
    if not memory.may_keep_memory():
        raise SystemExit("memory is kept with glibc only, and without settings of its malloc")
    results: dict[str, Any] = {"machine": machine(), "ranks": {}}
    for ranks in arguments.ranks:
        results["ranks"][ranks] = compared(ranks, arguments.passes)
        for model, row in results["ranks"][ranks].items():
            figures = ", ".join(f"{name} {format_ratio(row[name])}" for name in SETTINGS)
            print(f"{ranks} ranks, {model}: {figures}", flush=True)
    write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
