"""Commands that look at plans in files."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tensoropt_torch.cli.arguments import add_model_of_plan, load_plan
from tensoropt_torch.cli.planning import show_stages
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.report.tables import diff_table, facts_table, plan_summary, plan_table
from tensoropt_torch.telling.details import details_of
from tensoropt_torch.telling.provenance import provenance


def add_show(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt show``."""
    parser.add_argument("plan", type=Path)
    add_model_of_plan(parser)


def run_show(options: argparse.Namespace, console: Console) -> None:
    """Print what a plan is for, what it costs and, with its model, what it does."""
    plan = load_plan(options.plan, options)
    if isinstance(plan, StagedPlan):
        show_stages(plan, console)
        return
    console.print(facts_table(plan))
    for origin in provenance(plan.settings):
        console.print(f"  {origin}", soft_wrap=True)
    if plan.captured is not None:
        details = details_of(plan)
        console.print(plan_table(details.description))
        console.print(plan_summary(details.description))
        console.print(details.summary)


def add_diff(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt diff``."""
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    add_model_of_plan(parser)


def run_diff(options: argparse.Namespace, console: Console) -> None:
    """Print what changes."""
    before, after = (load_plan(path, options) for path in (options.before, options.after))
    console.print(diff_table(before.diff(after)))
