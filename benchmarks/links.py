"""Benchmarks of ranks that are joined by loopback or by a slower link."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import joined_machines
from benchmarks.machine import machine
from benchmarks.ranks import WORKER, print_results, results_of_machines, results_of_ranks
from tensoropt_torch.measure.kept.files import write_atomically

LOOPBACK = "loopback"


def limited(rate: str) -> tuple[str, ...]:
    """The command within which processes are joined by a loopback of that rate."""
    limit = " ".join(joined_machines.limit("lo", rate))
    return "unshare", "--net", "sh", "-c", f'ip link set lo up && {limit} && "$@"', "sh"


def run_on_links(
    script: str,
    description: str | None,
    measure: Callable[[str], Any],
    names: Sequence[str],
    results_path: Path,
    format_row: Callable[[dict[str, Any]], str],
    on_demand: Sequence[str] = (),
) -> None:
    """Run the jobs of a script, print its rows, write its JSON.

    ``measure`` runs one of ``names``, or of those ``on_demand``, on every rank and returns rows
    by label. Rows of models that are not run stay; each model's machine is beside them.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--link", help="a rate as tc writes it, such as 2gbit")
    joined = "the link is between two machines, each with half of the processes"
    parser.add_argument("--two-machines", action="store_true", help=joined)
    parser.add_argument("--models", nargs="+", default=list(names), choices=[*names, *on_demand])
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.two_machines and arguments.link is None:
        parser.error("--two-machines needs --link")
    if arguments.worker:
        print_results(measure, arguments.models)
        return
    chosen = ("--models", *arguments.models)
    results = json.loads(results_path.read_text()) if results_path.exists() else {}
    for ranks in arguments.ranks:
        link = arguments.link
        with tempfile.TemporaryDirectory() as home:  # what earlier runs measured is not used
            environment = {"TENSOROPT_HOME": home}
            if arguments.two_machines:
                found = results_of_machines(script, ranks, link, environment, chosen)
            else:
                within = () if link is None else limited(link)
                found = results_of_ranks(script, ranks, within, environment, chosen)
        places = " on two machines" if arguments.two_machines else ""
        where = f"{ranks} processes{places}, {link or LOOPBACK}"
        job = results.setdefault(where, {"models": {}, "machines": {}})
        job["models"] |= found
        job["machines"] |= dict.fromkeys(found, machine())
        for name, rows in found.items():
            for label, row in rows.items():
                print(f"{where}, {name}, {label}: {format_row(row)}")
        write_atomically(results_path, json.dumps(results, indent=1) + "\n")
