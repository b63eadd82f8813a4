"""Peaks of compiled steps: measured, simulated, and those of steps that are not compiled.

    python benchmarks/compiled_memory.py --ranks 1 2

The models of compiled_steps.py train with AdamW under a data parallel plan, and under random
strategies of some seeds, as one graph compiled by Inductor. Bytes are those of the rank with the
highest peak. Writes its entries of benchmarks/results/compiled_memory.json, and the table of
docs/costs.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.compiled_steps import CPU, MODELS, ROWS, plan_of
from benchmarks.machine import machine
from benchmarks.page import fill_tables, rows_of
from benchmarks.ranks import WORKER, print_results, results_of_ranks
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.measure.runs.peak_memory import measure_peak_bytes
from tensoropt_torch.module import parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.simulate import StepSettings, simulate_step
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.tasks import Example, PlanningOptions, task_of

RESULTS = Path(__file__).parent / "results" / "compiled_memory.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "costs.md"
COMPARED = ("GPT", "Llama", "ViT", "U-Net")


@dataclass(frozen=True)
class Peaks:
    """Bytes of one strategy: of the plan's steps, and of its compiled ones."""

    strategy: str
    measured: int
    simulated: int
    compiled_measured: int
    compiled_simulated: int

    @property
    def error(self) -> float:
        """Of the simulated peak of compiled steps."""
        return self.compiled_simulated / self.compiled_measured - 1


def plans(model: nn.Module, batch: Any, seeds: int) -> Iterator[tuple[str, Plan]]:
    """With their names."""
    yield "data parallel", plan_of(model, batch, "float32")
    ranks = dist.get_world_size()
    if ranks == 1:
        return
    example = Example(model, batch, batch_norm_groups=ranks)
    task = task_of(example, PlanningOptions(optimizer="adamw", inputs="sharded", measure=False))
    settings = task.settings(ranks)
    space = make_space(task.captured, settings)
    for seed in range(seeds):
        strategy = space.random_strategy(seed, 0.5)
        yield f"random, seed {seed}", Plan.of(space, settings, task.captured, strategy)


def measured(model: nn.Module, plan: Plan, batch: Any, compile: bool) -> tuple[int, bool]:
    """The peak of all ranks, and whether steps are compiled as one graph."""
    assert plan.captured is not None
    torch.compiler.reset()
    module = parallelize(copy.deepcopy(model), plan.captured, plan, CPU, compile=compile)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        torch.autograd.backward(module(*batch))
        optimizer.step()
        optimizer.zero_grad()

    peak = torch.tensor(measure_peak_bytes(module, optimizer, step, batch))
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return int(peak), "as one graph" in module.extra_repr()


def simulated(plan: Plan, compiled: bool) -> int:
    assert plan.captured is not None
    ranks = range(plan.num_devices)
    settings = [StepSettings(rank=rank, compiled=compiled) for rank in ranks]
    return max(simulate_step(plan, plan.captured, own).peak_bytes for own in settings)


def measure(seeds: int, name: str) -> list[dict[str, Any]]:
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model, batch = MODELS[name].make(ROWS * ranks)
    own = tuple(tensor.chunk(ranks)[dist.get_rank()].clone() for tensor in batch)
    found = []
    for strategy, plan in plans(model, batch, seeds):
        compiled, is_whole = measured(model, plan, own, compile=True)
        if not is_whole:
            continue
        eager, _ = measured(model, plan, own, compile=False)
        peaks = Peaks(strategy, eager, simulated(plan, False), compiled, simulated(plan, True))
        found.append({**asdict(peaks), "error": peaks.error})
    return found


def fill_page(results: dict[str, Any]) -> None:
    """MiB, and errors."""
    rows = [
        [
            f"{model}, {row['strategy']}; {where}",
            f"{row['compiled_measured'] / 2**20:.1f}",
            f"{row['compiled_simulated'] / 2**20:.1f}",
            f"{row['error']:+.1%}",
            f"{row['measured'] / 2**20:.1f}",
        ]
        for where, job in results.items()
        for model, of_model in job["models"].items()
        for row in of_model
    ]
    head = ["MiB", "compiled, measured", "simulated", "error", "not compiled, measured"]
    fill_tables(PAGE, {"compiled_memory": rows_of(head, rows)})


def main() -> None:
    """Measures on each number of processes, writes the JSON and fills the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", default=list(COMPARED), choices=COMPARED)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print_results(partial(measure, arguments.seeds), arguments.models)
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    chosen = ["--models", *arguments.models, "--seeds", str(arguments.seeds)]
    for ranks in arguments.ranks:
        found = results_of_ranks(__file__, ranks, arguments=chosen)
        key = f"{ranks} {'process' if ranks == 1 else 'processes'}"
        kept = results.get(key, {}).get("models", {})
        results[key] = {"machine": machine(), "models": {**kept, **found}}
        for name, rows in found.items():
            for row in rows:
                print(f"{key}, {name}, {row['strategy']}: {row['error']:+.2%}")
        write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")
    fill_page(results)


if __name__ == "__main__":
    main()
