"""Commands that explain, check and list."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tensoropt_torch import api
from tensoropt_torch.cli.arguments import (
    add_memory_limit,
    add_model,
    call_user,
    check_beside_plan,
    load_example,
    load_plan,
    optimizer_of,
    planning_of,
    write_json,
)
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import StagedPlan, load_any
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.report.explanation_tables import explanation_table, fallback_table
from tensoropt_torch.report.tables import memory_table
from tensoropt_torch.rules import check_rule
from tensoropt_torch.simulate import StepSettings
from tensoropt_torch.units import format_bytes


def add_explain(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt explain``."""
    add_model(parser)
    parser.add_argument("--json", type=Path, help="write all records to this file")
    parser.add_argument(
        "--plan", type=Path, help="why this saved plan is what it is, instead of what its space is"
    )


def run_explain(options: argparse.Namespace, console: Console) -> None:
    """Print what of the space is considered and what is left out, or why a plan is picked."""
    if options.plan:
        if options.json:
            raise TensorOptError("--json has the records of a space; leave it or --plan out")
        check_beside_plan(options, "epsilon")
        plan = load_plan(options.plan, options)
        why = api.explain(plan, search=SearchSettings(epsilon=options.epsilon))
        console.print(str(why), markup=False, highlight=False, soft_wrap=True)
        return
    explanation = api.explain(
        load_example(options), num_devices=options.devices, planning=planning_of(options)
    )
    console.print(explanation_table(explanation))
    if explanation.fallbacks:
        console.print(fallback_table(explanation))
    else:
        console.print("All operators and parameters can be split over all devices")
    if options.json:
        write_json(options.json, explanation.to_records())


def add_check_rule(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt check-rule``."""
    parser.add_argument(
        "example",
        help="file.py:function; the function returns (operator, args) or (operator, args, kwargs)",
    )


def run_check_rule(options: argparse.Namespace, console: Console) -> None:
    """Run an operator in every config of its rule, and say that they hold."""
    operator, args, *rest = call_user("example", options.example)
    report = check_rule(operator, args, rest[0] if rest else {})
    console.print(
        f"{report.operator}: '{report.rule}' holds in {report.num_configs} configs "
        f"(splits: {', '.join(report.splits) or 'none'}), "
        + ("outputs and gradients" if report.gradients else "outputs; it has no gradients")
    )


def add_memory(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt memory``."""
    add_model(parser)
    parser.add_argument("--plan", type=Path, help="a saved plan; by default that of mini_time")
    add_memory_limit(parser)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="by default the cluster's")
    parser.add_argument("--rank", type=int, default=0)


def run_memory(options: argparse.Namespace, console: Console) -> None:
    """Simulate a step of one rank and print where the bytes of its peak go."""
    example = load_example(options)
    if options.plan:
        check_beside_plan(options, "optimizer", "state_dtype", "master_weights")
        plan = load_any(options.plan)
    else:
        plan = api.find_strategy(
            example,
            memory_limit=options.memory_limit,
            num_devices=options.devices,
            planning=planning_of(options),
        )
    cluster = parse_cluster(plan.plans[0].settings.cluster, "the plan")
    device = options.device or cluster.device.type
    step = StepSettings(optimizer_of(options), device, options.rank)
    profile = api.simulate_memory(example, plan, step=step)
    console.print(memory_table(profile))
    counted = plan.memory_bytes
    if isinstance(plan, StagedPlan):
        counted = plan.memory_of_stages[options.rank // plan.devices_of_stage]
    console.print(f"the search counted {format_bytes(counted)}")
    if profile.unknown:
        console.print(f"workspaces not counted: {', '.join(profile.unknown)}")
