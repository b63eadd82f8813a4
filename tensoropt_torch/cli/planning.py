"""Commands that find strategies."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from rich.console import Console

from tensoropt_torch import api, simulate
from tensoropt_torch.cli.arguments import (
    add_memory_limit,
    add_model,
    load_example,
    planning_of,
    read_counts,
    write_json,
)
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner import picks
from tensoropt_torch.planner.constraint_costs import constraint_costs
from tensoropt_torch.planner.device_counts import Objective
from tensoropt_torch.planner.stage_timeline import timeline_of
from tensoropt_torch.report.stage_tables import picture_of, stages_table
from tensoropt_torch.report.tables import (
    comparison_table,
    constraint_table,
    frontier_table,
    plan_summary,
    plan_table,
    profile_table,
    tradeoffs_table,
)
from tensoropt_torch.simulate import StepSettings
from tensoropt_torch.tasks import by_memory
from tensoropt_torch.telling.details import details_of
from tensoropt_torch.telling.provenance import provenance
from tensoropt_torch.units import format_bytes, format_seconds

COUNTS = "numbers of devices are given by --counts"


def add_frontier(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt frontier``."""
    add_model(parser)
    parser.add_argument("--json", type=Path, help="write the points to this file")


def run_frontier(options: argparse.Namespace, console: Console) -> None:
    """Print the points, and write them."""
    frontier = api.find_frontier(
        load_example(options), num_devices=options.devices, planning=planning_of(options)
    )
    points = [(p.memory_bytes, p.time_s) for p in frontier]
    console.print(frontier_table(points, frontier.title, rows=20))
    if options.json:
        record = {
            "num_devices": frontier.num_devices,
            "guarantee": asdict(frontier.guarantee),
            "points": frontier.to_records(),
        }
        write_json(options.json, record)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt plan``."""
    add_model(parser)
    parser.add_argument("--option", choices=["mini_time", "mini_parallelism"], default="mini_time")
    add_memory_limit(parser)
    parser.add_argument("--output", type=Path, help="write the plan to this file")
    parser.add_argument("--details", action="store_true", help="print every operator's config")


def run_plan(options: argparse.Namespace, console: Console) -> None:
    """Print what is picked, and write it."""
    plan = api.find_strategy(
        load_example(options),
        option=options.option,
        memory_limit=options.memory_limit,
        num_devices=options.devices,
        planning=planning_of(options),
    )
    if isinstance(plan, StagedPlan):
        _print_stages(plan, options, console)
        return
    details = details_of(plan)
    console.print(
        f"{options.option}: {plan.num_devices} devices, {format_seconds(plan.time_s)} a step, "
        f"{format_bytes(plan.memory_bytes)} per device by sums, {_peak_in_words(plan)}; "
        f"{plan_summary(details.description)}"
    )
    console.print(details.summary)
    for origin in provenance(plan.settings):
        console.print(f"  {origin}", soft_wrap=True)
    if options.details:
        console.print(plan_table(details.description))
    if plan.settings.constraints:
        costs = constraint_costs(plan, memory_limit=options.memory_limit)
        console.print(constraint_table(costs))
    if options.output:
        plan.save(options.output)


def _print_stages(plan: StagedPlan, options: argparse.Namespace, console: Console) -> None:
    console.print(
        f"{options.option}: {plan.num_devices} devices, {format_seconds(plan.time_s)} a step, "
        f"{format_bytes(plan.memory_bytes)} per device by sums, {_peak_in_words(plan)}"
    )
    show_stages(plan, console)
    if options.details:
        for number, part in enumerate(plan.plans):
            console.print(f"part {number}: {part!r}", markup=False)
            console.print(plan_table(details_of(part).description))
    if options.output:
        plan.save(options.output)


def _peak_in_words(plan: Plan | StagedPlan) -> str:
    if plan.peak_bytes is None:
        return "not simulated"
    return f"simulated peak of {format_bytes(plan.peak_bytes)}"


def show_stages(plan: StagedPlan, console: Console) -> None:
    """Print what each stage is, when it does what and, with the model, what its plan is."""
    console.print(stages_table(plan))
    console.print(picture_of(timeline_of(plan)), markup=False, highlight=False, soft_wrap=True)
    if plan.captured is not None:
        console.print(plan.summary(), markup=False)


def add_profile(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt profile``."""
    add_model(parser, no_devices=COUNTS)
    parser.add_argument("--counts", type=read_counts, required=True, help="e.g. 1,2,4,8")
    add_memory_limit(parser)


def run_profile(options: argparse.Namespace, console: Console) -> None:
    """Print the least step time for each number of devices."""
    rows = api.profile(
        load_example(options),
        device_counts=options.counts,
        memory_limit=options.memory_limit,
        planning=planning_of(options),
    )
    console.print(profile_table(rows))


def add_compare(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt compare``."""
    add_model(parser)
    add_memory_limit(parser)


def run_compare(options: argparse.Namespace, console: Console) -> None:
    """Print the frontier beside the baselines."""
    comparison = api.compare(
        load_example(options),
        memory_limit=options.memory_limit,
        num_devices=options.devices,
        planning=planning_of(options),
    )
    console.print(comparison_table(comparison))


def add_tradeoffs(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt tradeoffs``."""
    add_model(parser, no_devices=COUNTS)
    parser.add_argument("--counts", type=read_counts, required=True, help="e.g. 1,2,4,8")
    parser.add_argument("--objective", choices=get_args(Objective), default="money")
    add_memory_limit(parser)


def run_tradeoffs(options: argparse.Namespace, console: Console) -> None:
    """Print for each number of devices what is fastest within the limit, and what it costs."""
    planning = planning_of(options)
    found = api.find_tradeoffs(
        load_example(options),
        device_counts=options.counts,
        objective=options.objective,
        planning=planning,
    )
    device = parse_cluster(found.frontiers[0].settings.cluster, "the plan").device
    limit = options.memory_limit
    if limit is None:
        limit = found.frontiers[0].default_memory_limit
    step = StepSettings(planning.optimizer, device.type)
    rows = by_memory(
        planning.memory,
        lambda: [simulate.row_of(frontier, limit, step) for frontier in found.frontiers],
        lambda: [picks.row_of(frontier, limit) for frontier in found.frontiers],
    )
    console.print(tradeoffs_table(found, rows, limit))
