"""Starts a benchmark on processes of this machine, each on one thread."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import tensoropt_torch
from benchmarks import joined_machines

WORKER = "--worker"  # what a rank of the script is told


def run_ranks(script: str, ranks: int, arguments: Sequence[str]) -> None:
    """Runs ``script --worker`` with the arguments on so many processes."""
    subprocess.run([*_command(script, ranks), *arguments], check=True, env=_environment())


def results_of_ranks(
    script: str,
    ranks: int,
    within: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Any:
    """What ``print_results`` printed on so many processes of the script, with these arguments.

    ``within`` is a command whose arguments are the command that it runs; ``environment``
    adds variables to this process's own.
    """
    return _printed([*within, *_command(script, ranks), *arguments], environment or {})


def results_of_machines(
    script: str,
    ranks: int,
    link: str,
    environment: Mapping[str, str],
    arguments: Sequence[str] = (),
) -> Any:
    """What ``results_of_ranks`` gives, of processes of two machines that a link of this rate joins
    (``joined_machines.py``); each has half of them."""
    assert ranks % joined_machines.MACHINES == 0, ranks
    here = str(ranks // joined_machines.MACHINES)
    launcher = [sys.executable, joined_machines.__file__, link, here, script, WORKER]
    return _printed(["unshare", "--net", *launcher, *arguments], environment)


def _printed(command: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The last line that the command prints, as JSON."""
    env = {**_environment(), **environment}
    done = subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def print_results(measure: Callable[[str], Any], names: Sequence[str]) -> None:
    """On every rank: measures by name; the first rank prints all as JSON, on its last line."""
    torch.set_num_threads(1)
    tensoropt_torch.init()
    found = {name: measure(name) for name in names}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def mean_time(step: Callable[[], object], steps: int) -> float:
    """Of some that follow each other, in s; equal on all ranks."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    slowest = torch.tensor((time.perf_counter() - began) / steps)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def ratio_figures(ratios: Sequence[float]) -> dict[str, Any]:
    """Their median and quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median_ratio": middle, "quartiles_of_ratio": [low, high]}


def format_ratio(figures: dict[str, Any]) -> str:
    """The median with the quartiles."""
    low, high = figures["quartiles_of_ratio"]
    return f"{figures['median_ratio']:.2f} ({low:.2f} to {high:.2f})"


def _command(script: str, ranks: int) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={ranks}", script, WORKER]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
