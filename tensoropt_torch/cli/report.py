"""The command ``tensoropt report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tensoropt_torch import api
from tensoropt_torch.cli.arguments import (
    add_memory_limit,
    add_model,
    load_example,
    planning_of,
    read_counts,
)
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.planner.baselines import Comparison
from tensoropt_torch.simulate import MemoryProfile, StepSettings
from tensoropt_torch.tasks import Example, PlanningOptions


def add_report(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    add_model(parser)
    parser.add_argument("--output", type=Path, default=Path("report.html"))
    add_memory_limit(parser)
    parser.add_argument("--counts", type=read_counts, help="numbers of devices, e.g. 1,2,4,8")


def run_report(options: argparse.Namespace, console: Console) -> None:
    """Plan, and write the page."""
    example = load_example(options)
    planning = planning_of(options)
    limit = options.memory_limit
    comparison = api.compare(
        example, memory_limit=limit, num_devices=options.devices, planning=planning
    )
    counts = (
        api.profile(example, device_counts=options.counts, memory_limit=limit, planning=planning)
        if options.counts
        else ()
    )
    peak = _peak(comparison, example, planning) if comparison.picks is not None else None
    comparison.report(options.output, counts=counts, peak=peak)
    console.print(f"written to {options.output}", soft_wrap=True)


def _peak(
    comparison: Comparison, example: Example, planning: PlanningOptions
) -> MemoryProfile | None:
    """Of the pick, if any strategy fits."""
    plan = comparison.plan()
    if plan is None:
        return None
    device = parse_cluster(plan.plans[0].settings.cluster, "the plan").device.type
    rank = 0
    if isinstance(plan, StagedPlan):  # of the stage that needs most
        rank = plan.peaks.index(max(plan.peaks)) * plan.devices_of_stage
    step = StepSettings(planning.optimizer, device, rank)
    return api.simulate_memory(example, plan, step=step)
