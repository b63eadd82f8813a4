"""Step times with and without overlap of parameters' reshards with computing.

    python benchmarks/overlap.py --ranks 2 4
    python benchmarks/overlap.py --ranks 2 --link 2gbit

Baselines that reshard parameters and random strategies of some models train in turn both
ways, in the same processes: ratios are those of one run. With ``--link`` the processes
are in a network of their own whose loopback is limited to that rate, which stands for
machines that are joined by such a link (needs root, ``unshare`` and ``tc``). Writes its
entries of benchmarks/results/overlap.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

import tensoropt_torch
from benchmarks.links import run_on_links
from benchmarks.models.small import STUDY
from benchmarks.ranks import format_ratio, ratio_figures
from benchmarks.training import Trainer
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.runs.exposed import with_overlap
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask

RESULTS = Path(__file__).parent / "results" / "overlap.json"
BASELINES = ("data parallel", "ZeRO-3")
STRATEGIES = 2
PASSES = 3
STEPS = 6


def plans(task: PlanningTask, trainer: Trainer) -> Iterator[tuple[str, Plan]]:
    """The fastest of some baselines, then random strategies."""
    for baseline in find_baselines(task, dist.get_world_size(), BASELINES):
        yield baseline.name, baseline.plan(len(baseline.points) - 1)
    for seed, plan in enumerate(trainer.random_plans(STRATEGIES)):
        yield f"random, seed {seed}", plan


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks, by plan: step and network times in s, and the ratio of
    steps with its quartiles."""
    torch.manual_seed(0)
    model, args = STUDY[name].make()
    task = PlanningTask(capture(model, args), tensoropt_torch.load_cluster("cpu"))
    trainer = Trainer(model, args, task)
    rows = {}
    for label, plan in plans(task, trainer):
        blocking, overlapping = (
            trainer.start(with_overlap(plan, overlap)) for overlap in (False, True)
        )
        times = [(blocking.times(STEPS), overlapping.times(STEPS)) for _ in range(PASSES)]
        rows[label] = {
            **ratio_figures([after.step_s / before.step_s for before, after in times]),
            "blocking": [vars(before) for before, _ in times],
            "overlapping": [vars(after) for _, after in times],
        }
    trainer.close()
    return rows


if __name__ == "__main__":
    run_on_links(__file__, __doc__, measure, list(STUDY), RESULTS, format_ratio)
