"""How long planning takes: capture, cost tables, search of the whole frontier.

    python benchmarks/planning_time.py --models gpt2 llama --devices 16 64
    python benchmarks/planning_time.py --models rnn transformer --epsilon 1e-3
    python benchmarks/planning_time.py --table     # the rows of docs/search.md and comparison.md
    python benchmarks/planning_time.py --draw      # the tables of what is there

Models are on the meta device, devices on machines of 8, the paper's or those with H100; each in a
process of its own. Writes benchmarks/results/planning_time.json, where entries of
other models, devices and epsilons stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

from gpt import GPT, GPTConfig  # noqa: E402
from rich.console import Console  # noqa: E402

from benchmarks.isolated import run_isolated  # noqa: E402
from benchmarks.machine import machine, peak_rss_bytes  # noqa: E402
from benchmarks.models import catalogue, hugging_face  # noqa: E402
from benchmarks.models.catalogue import Example, tokens  # noqa: E402
from benchmarks.page import fill_tables  # noqa: E402
from benchmarks.paper.setups import h100_cluster, paper_cluster  # noqa: E402
from benchmarks.planning_table import ROWS, compared_table, planning_table  # noqa: E402
from tensoropt_torch import Cluster  # noqa: E402
from tensoropt_torch.batches import micro_batched  # noqa: E402
from tensoropt_torch.frontend import capture  # noqa: E402
from tensoropt_torch.planner.baselines import find_baselines  # noqa: E402
from tensoropt_torch.planner.candidates import find_frontier  # noqa: E402
from tensoropt_torch.planner.frontier import Frontier  # noqa: E402
from tensoropt_torch.planner.optimizer_model import OPTIMIZER_STATES  # noqa: E402
from tensoropt_torch.planner.search_settings import SearchSettings  # noqa: E402
from tensoropt_torch.planner.task import PlanningTask  # noqa: E402
from tensoropt_torch.space.search_space import make_space  # noqa: E402
from tensoropt_torch.staging import with_stage_search  # noqa: E402

DEVICES_OF_A_MACHINE = 8
RESULT = ROOT / "benchmarks" / "results" / "planning_time.json"
PAGE = ROOT / "docs" / "search.md"
COMPARISON = ROOT / "docs" / "comparison.md"


def gpt2() -> Example:
    """GPT-2 small: 12 layers, batch 16 of 1024 tokens."""
    config = GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    return GPT(config), tokens(16, 1024)


CLUSTERS: dict[str, Callable[[int], Cluster]] = {"paper": paper_cluster, "h100": h100_cluster}
MODELS: dict[str, Callable[[], Example]] = {"gpt2": gpt2, **catalogue.MODELS}


def step_of(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model on the meta device, and the arguments of a training step."""
    with torch.device("meta"):
        if name in MODELS:
            return *MODELS[name](), {}
        model, kwargs = hugging_face.MODELS[name]()
        return model, (), kwargs


def measure(
    name: str,
    devices: int,
    optimizer: str,
    epsilon: float,
    recompute: bool,
    max_micro_batches: int,
    max_stages: int,
    machines: str,
    beside_fsdp: bool,
) -> dict[str, Any]:
    """Plan one model; seconds by phase, and the frontier."""
    cluster = CLUSTERS[machines](max(2, devices // DEVICES_OF_A_MACHINE))
    start, start_cpu = time.perf_counter(), time.process_time()
    model, args, kwargs = step_of(name)
    built = time.perf_counter()
    captured = capture(model, args, kwargs)
    after_capture = time.perf_counter()
    search = SearchSettings(epsilon=epsilon)
    counts = [2**i for i in range(1, max_micro_batches.bit_length())]
    task = PlanningTask(
        captured,
        cluster,
        optimizer=optimizer,
        search=search,
        recompute=recompute,
        in_micro_batches=tuple(micro_batched(captured, count) for count in counts),
        max_stages=max_stages,
    )
    after_splits, splits_cpu = time.perf_counter(), time.process_time()
    space = make_space(captured, task.settings(devices))
    space.build()
    after_costs = time.perf_counter()
    del space
    searching_cpu = time.process_time()
    frontier = find_frontier(with_stage_search(task), devices)
    cpu_s = time.process_time() - searching_cpu + splits_cpu - start_cpu
    table_s = after_costs - after_splits
    return {
        "model": name,
        "machine": machine(),
        "cluster": machines,
        "devices": devices,
        "optimizer": optimizer,
        "epsilon": epsilon,
        "recompute": recompute,
        "max_micro_batches": max_micro_batches,
        "max_stages": max_stages,
        "points_in_stages": sum(point.stages > 1 for point in frontier),
        "epsilon_proved": frontier.guarantee.epsilon,
        "exact": frontier.guarantee.exact,
        "complete_space": frontier.guarantee.complete,
        "points": len(frontier),
        "build_s": built - start,
        "capture_s": after_capture - built,
        "micro_batches_s": after_splits - after_capture,
        "costs_s": table_s,
        "search_s": frontier.search_seconds - table_s,
        "total_s": after_splits - start + frontier.search_seconds,
        "cpu_s": cpu_s,
        "peak_rss_bytes": peak_rss_bytes(),
        "smallest": [frontier.smallest.memory_bytes, frontier.smallest.time_s],
        "knee": [frontier.knee.memory_bytes, frontier.knee.time_s],
        "fastest": [frontier.fastest.memory_bytes, frontier.fastest.time_s],
        "stats": dict(frontier.stats),
    } | ({"fsdp": fsdp(task, devices, frontier)} if beside_fsdp else {})


def fsdp(task: PlanningTask, devices: int, frontier: Frontier) -> dict[str, Any]:
    """Where fully sharded data parallelism lies beside the frontier, in one batch: as it is, with
    all recomputed and with half of what recomputation saves. Each as (bytes, seconds), and the
    seconds of the fastest point in its memory."""

    def points(recompute: bool) -> Sequence[tuple[float, float]]:
        asked = replace(task, recompute=recompute, in_micro_batches=())
        (baseline,) = find_baselines(asked, devices, ("ZeRO-3",))
        return baseline.points

    recomputed = points(recompute=True)
    half = (recomputed[0][0] + recomputed[-1][0]) / 2
    found = {
        "no recomputation": points(recompute=False)[0],
        "full recomputation": recomputed[0],
        "selective recomputation": max(point for point in recomputed if point[0] <= half),
    }
    return {name: (*p, frontier.at(memory_bytes=p[0]).time_s) for name, p in found.items()}


def merged(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the entries of the file that are not among these."""
    fields = itemgetter("model", "devices", "optimizer", "epsilon")

    def key(run: dict[str, Any]) -> tuple[Any, ...]:
        options = run.get("recompute", False), run.get("max_micro_batches", 1)
        options = *options, run.get("max_stages", 1)
        return *fields(run), *options, run.get("cluster", "paper")

    kept = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    runs = {key(run): run for run in [*kept, *records]}
    return [runs[name] for name in sorted(runs)]


def main() -> None:
    """Measure the models that are named, print the frontiers, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*MODELS, *hugging_face.MODELS]
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama"], choices=names)
    parser.add_argument("--cluster", default="paper", choices=list(CLUSTERS))
    parser.add_argument("--devices", type=int, nargs="+", default=[16])
    parser.add_argument("--optimizer", default="adamw", choices=list(OPTIMIZER_STATES))
    parser.add_argument("--epsilon", type=float, default=SearchSettings().epsilon)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--max-micro-batches", type=int, default=1)
    parser.add_argument("--max-stages", type=int, default=1)
    parser.add_argument("--beside-fsdp", action="store_true", help="also where that lies")
    parser.add_argument("--table", action="store_true", help="the rows of docs/search.md")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    console = Console()
    RESULT.parent.mkdir(exist_ok=True)
    for arguments in [] if options.draw else wanted(options):
        record = run_isolated(measure, *arguments)
        console.print(record)
        RESULT.write_text(json.dumps({"runs": merged([record])}, indent=1) + "\n")
    if options.table or options.draw:
        runs = json.loads(RESULT.read_text())["runs"]
        fill_tables(PAGE, {"planning_time": planning_table(runs)})
        fill_tables(COMPARISON, {"planning_compared": compared_table(runs)})


def wanted(options: argparse.Namespace) -> list[tuple[Any, ...]]:
    """The arguments of each measurement."""
    most, stages = options.max_micro_batches, options.max_stages
    rows = [
        (m, d, options.recompute, most, stages) for m in options.models for d in options.devices
    ]
    cluster = options.cluster
    if options.table:
        rows, cluster = list(ROWS), "h100"
    return [
        (
            name,
            devices,
            options.optimizer,
            options.epsilon,
            recompute,
            most,
            stages,
            cluster,
            options.beside_fsdp,
        )
        for name, devices, recompute, most, stages in rows
    ]


if __name__ == "__main__":
    main()
