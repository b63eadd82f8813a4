"""What steps cost that are compiled as one graph, beside ``torch.compile`` of the model.

    python benchmarks/compiled_steps.py --ranks 1 2

In the same processes the model, or on several DistributedDataParallel, trains in turn as it is,
under ``torch.compile``, and under a data parallel plan, with and without ``compile=True``: a GPT
whose layers are so small that only what is done between operators counts, and one of 4 layers of
width 256, in float32 and under autocast to bfloat16. Ratios are those of one turn, of forward and
backward, to the way that is compiled by ``torch.compile``. Writes its entries of
benchmarks/results/compiled_steps.json, and the table of docs/runtime.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.machine import machine, processor
from benchmarks.overhead import PRECISIONS, TINY, casting
from benchmarks.page import fill_tables, rows_of
from benchmarks.ranks import WORKER, format_ratio, print_results, ratio_figures, results_of_ranks
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.module import parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.tasks import Example, PlanningOptions, task_of

RESULTS = Path(__file__).parent / "results" / "compiled_steps.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "runtime.md"
CPU = torch.device("cpu")
ROWS, WARM_UPS = 4, 4
SMALL = GPTConfig(vocab_size=512, block_size=128, n_layer=4, n_head=4, n_embd=256)
MODELS = {"tiny layers": (TINY, 80), "GPT": (SMALL, 12)}  # with turns
PLAIN, COMPILED = "as it is", "torch.compile"
WAYS = (PLAIN, COMPILED, "plan", "plan, compiled")


def plan_of(model: nn.Module, batch: Any, precision: str) -> Plan:
    """Data parallel, which is all that there is for one rank."""
    planning = PlanningOptions(optimizer="adamw", inputs="sharded", measure=False)
    with casting(precision, CPU):
        task = task_of(Example(model, batch), planning)
    (baseline,) = find_baselines(task, dist.get_world_size(), ("data parallel",))
    return baseline.plan(len(baseline.points) - 1)


def modules_of(model: nn.Module, plan: Plan) -> dict[str, Callable[..., Any]]:
    """By way; each trains a copy."""

    def alone() -> nn.Module:
        own = copy.deepcopy(model)
        return own if dist.get_world_size() == 1 else DistributedDataParallel(own)

    assert plan.captured is not None
    made: dict[str, Callable[..., Any]] = {PLAIN: alone(), COMPILED: torch.compile(alone())}
    for way, compile in zip(WAYS[2:], (False, True), strict=True):
        own = copy.deepcopy(model)
        made[way] = parallelize(own, plan.captured, plan, CPU, compile=compile)
    return made


def measure(name: str, precision: str) -> dict[str, Any]:
    """Seconds of forward and backward by way, and their ratios."""
    config, turns = MODELS[name]
    torch.manual_seed(0)
    model, ranks = GPT(config), dist.get_world_size()
    batch = tuple(torch.randint(config.vocab_size, (2, ROWS * ranks, config.block_size)))
    own = tuple(tensor.chunk(ranks)[dist.get_rank()].clone() for tensor in batch)
    modules = modules_of(model, plan_of(model, batch, precision))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(WARM_UPS + turns):
        for way, module in modules.items():
            dist.barrier()
            began = time.perf_counter()
            with casting(precision, CPU):
                loss = module(*own)
            loss.backward()
            if turn >= WARM_UPS:
                found[way].append(time.perf_counter() - began)
            for parameter in module.parameters():  # type: ignore[attr-defined]
                parameter.grad = None
    return {
        way: {
            "median_s": statistics.median(times),
            **ratio_figures([a / b for a, b in zip(times, found[COMPILED], strict=True)]),
        }
        for way, times in found.items()
    }


def measure_all(name: str) -> dict[str, Any]:
    return {precision: measure(name, precision) for precision in PRECISIONS}


def fill_page(results: dict[str, Any]) -> None:
    """The ratios, and ms."""
    rows = [
        [
            f"{model}, {precision}; {where}",
            *(
                f"{of_way[way]['median_s'] * 1e3:.1f}, {format_ratio(of_way[way])}"
                for way in (PLAIN, "plan", "plan, compiled")
            ),
            f"{of_way[COMPILED]['median_s'] * 1e3:.1f}",
            processor(job["machine"]),
        ]
        for where, job in results.items()
        for model, by_precision in job["models"].items()
        for precision, of_way in by_precision.items()
    ]
    head = ["ms, to those of torch.compile", "as it is", "plan", "plan, compiled"]
    fill_tables(
        PAGE, {"compiled_steps": rows_of([*head, "ms of torch.compile", "measured on"], rows)}
    )


def main() -> None:
    """Measures on each number of processes, writes the JSON and fills the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print_results(measure_all, arguments.models)
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for ranks in arguments.ranks:
        found = results_of_ranks(__file__, ranks, arguments=["--models", *arguments.models])
        key = f"CPU, {ranks} {'process' if ranks == 1 else 'processes'}"
        kept = results.get(key, {}).get("models", {})
        results[key] = {"machine": machine(), "models": {**kept, **found}}
        print(json.dumps(results[key]["models"], indent=1))
        write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")
    fill_page(results)


if __name__ == "__main__":
    main()
