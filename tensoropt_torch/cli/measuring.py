"""Commands that measure: run under torchrun, by every process of the job."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from rich.console import Console

from tensoropt_torch import api
from tensoropt_torch.cli.arguments import add_model, load_example, planning_of
from tensoropt_torch.measure import ProfileOptions, ValidationOptions
from tensoropt_torch.report.costs import validation_summary, validation_table
from tensoropt_torch.runtime.job import device_of_group
from tensoropt_torch.units import format_seconds


def add_profile_hardware(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt profile-hardware``."""
    defaults = ProfileOptions()
    parser.add_argument("--cluster", help="preset or cluster file: memory and levels")
    parser.add_argument("--output", type=Path, help="write to this file, not to the user's cache")
    parser.add_argument("--max-bytes", type=int, default=defaults.max_bytes)
    parser.add_argument("--budget", type=float, default=defaults.budget_s, help="seconds")
    parser.add_argument("--fresh", action="store_true", help="measure again what is known")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``tensoropt validate``."""
    why = "strategies are of the processes that torchrun starts"
    add_model(parser, no_devices=why, in_job=True)
    defaults = ValidationOptions()
    parser.add_argument("--strategies", type=int, default=defaults.strategies)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--passes", type=int, default=defaults.passes, help="runs of each strategy")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument(
        "--budget", type=float, default=defaults.budget_s, help="seconds; inf: no limit"
    )
    parser.add_argument("--fresh", action="store_true", help="run again what was run before")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--report", type=Path, help="write a page to this HTML file")


def run_profile_hardware(options: argparse.Namespace, console: Console) -> None:
    """Measure the running job and say where that is kept."""
    with _job(console):
        profile, path = api.profile_hardware(
            options.cluster,
            options=ProfileOptions(
                max_bytes=options.max_bytes,
                budget_s=options.budget,
                fresh=options.fresh,
                output=options.output,
            ),
        )
        device = profile.cluster.device
        console.print(
            f"{profile.machine.processes} processes on {profile.machine.device}: "
            f"{device.flops_per_s['float32'] / 1e9:.1f} GFLOP/s in float32, "
            f"{device.memory_bandwidth_bytes_per_s / 1e9:.1f} GB/s, "
            f"{format_seconds(device.host_launch_s or device.launch_overhead_s)} an operator, "
            f"{format_seconds(device.runtime.reshard_s)} a reshard; "
            f"{len(profile.curves)} collectives"
        )
        console.print(f"written to {path}", soft_wrap=True)


def run_validate(options: argparse.Namespace, console: Console) -> None:
    """Run random strategies of a model and print how well they were predicted."""
    example, planning = load_example(options), planning_of(options)
    with _job(console):
        found = api.validate(
            example,
            options=ValidationOptions(
                options.strategies,
                options.seed,
                options.steps,
                options.passes,
                budget_s=options.budget,
                fresh=options.fresh,
            ),
            planning=planning,
        )
        console.print(validation_table(found))
        on_gpus = device_of_group().type == "cuda"
        console.print(validation_summary(found, "cuda" if on_gpus else "cpu"))
        if options.json and dist.get_rank() == 0:
            options.json.write_text(json.dumps(found.to_record(), indent=1))
        if options.report and dist.get_rank() == 0:
            found.report(options.report)


@contextmanager
def _job(console: Console) -> Iterator[None]:
    """Inside, the process group of torchrun; only rank 0 prints."""
    api.init()
    console.quiet = dist.get_rank() != 0
    try:
        yield
    finally:
        dist.destroy_process_group()
