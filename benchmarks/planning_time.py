"""How long planning takes: capture, cost tables, search of the whole frontier.

    python benchmarks/planning_time.py gpt2 llama --devices 16
    python benchmarks/planning_time.py rnn transformer --optimizer sgd

Models are on the meta device. Writes benchmarks/results/planning_time.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]

from gpt import GPT, GPTConfig  # noqa: E402
from rich.console import Console  # noqa: E402

from benchmarks.machine import machine, peak_rss_bytes  # noqa: E402
from benchmarks.models import catalogue  # noqa: E402
from benchmarks.models.catalogue import Example, tokens  # noqa: E402
from tensoropt_torch.config import load_cluster  # noqa: E402
from tensoropt_torch.frontend import capture  # noqa: E402
from tensoropt_torch.planner.frontier import Frontier  # noqa: E402
from tensoropt_torch.planner.options import (  # noqa: E402
    OPTIMIZER_STATE_FACTORS,
    PlanningTask,
    SearchSettings,
    find_frontier,
)
from tensoropt_torch.planner.space import make_planner  # noqa: E402
from tensoropt_torch.report.tables import frontier_table, frontier_title  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "planning_time.json"


def gpt2() -> Example:
    """GPT-2 small: 12 layers, batch 16 of 1024 tokens."""
    config = GPTConfig(vocab_size=50304, block_size=1024, n_layer=12, n_head=12, n_embd=768)
    return GPT(config), tokens(16, 1024)


MODELS: dict[str, Callable[[], Example]] = {"gpt2": gpt2, **catalogue.MODELS}


def measure(
    name: str, cluster: str, devices: int, optimizer: str, epsilon: float
) -> tuple[dict[str, Any], Frontier]:
    """Plan one model; seconds by phase, and the frontier."""
    start = time.perf_counter()
    with torch.device("meta"):
        model, args = MODELS[name]()
    built = time.perf_counter()
    captured = capture(model, args)
    after_capture = time.perf_counter()
    search = SearchSettings(epsilon=epsilon)
    task = PlanningTask(captured, load_cluster(cluster), optimizer=optimizer, search=search)
    planner = make_planner(captured, task.settings(devices))
    planner.build()
    after_costs = time.perf_counter()
    del planner
    frontier = find_frontier(task, devices)
    table_s = after_costs - after_capture
    record = {
        "model": name,
        "cluster": cluster,
        "devices": devices,
        "optimizer": optimizer,
        "epsilon": epsilon,
        "epsilon_proved": frontier.guarantee.epsilon,
        "exact": frontier.guarantee.exact,
        "complete_space": frontier.guarantee.complete,
        "points": len(frontier),
        "build_s": built - start,
        "capture_s": after_capture - built,
        "costs_s": table_s,
        "search_s": frontier.search_seconds - table_s,
        "total_s": after_capture - start + frontier.search_seconds,
        "peak_rss_bytes": peak_rss_bytes(),
        "smallest": [frontier.smallest.memory_bytes, frontier.smallest.time_s],
        "knee": [frontier.knee.memory_bytes, frontier.knee.time_s],
        "fastest": [frontier.fastest.memory_bytes, frontier.fastest.time_s],
    }
    return record, frontier


def main() -> None:
    """Measure the models that are named, print the frontiers, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["gpt2", "llama"], choices=list(MODELS))
    parser.add_argument("--cluster", default="paper-2x8-v100")
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--optimizer", default="adamw", choices=list(OPTIMIZER_STATE_FACTORS))
    parser.add_argument("--epsilon", type=float, default=SearchSettings().epsilon)
    options = parser.parse_args()
    console = Console()
    records = []
    for name in options.models:
        record, frontier = measure(
            name, options.cluster, options.devices, options.optimizer, options.epsilon
        )
        points = [(p.memory_bytes, p.time_s) for p in frontier]
        console.print(frontier_table(points, f"{name}: {frontier_title(frontier)}"))
        console.print(record)
        records.append(record)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"machine": machine(), "runs": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
