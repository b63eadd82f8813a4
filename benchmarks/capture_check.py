"""What comparing the captured graph with the module costs a job that starts.

    python benchmarks/capture_check.py --repeats 3

Two processes make a GPT parallel without measuring, and take the first step with the comparison,
without it, and after a job that has compared already; each time with the module anew. Clocks and
processor time of the first rank, which compares. Writes benchmarks/results/capture_check.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from gpt import GPT, GPTConfig  # noqa: E402

import tensoropt_torch  # noqa: E402
from benchmarks.machine import machine  # noqa: E402
from benchmarks.ranks import print_results, results_of_ranks  # noqa: E402
from tensoropt_torch.measure.kept.files import write_atomically  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "capture_check.json"
WITHOUT, COMPARED, LATER = "without", "compared", "compared before"
# Vocabulary, tokens, layers, heads, width, rows of the batch.
SIZES = {
    "GPT of start_up.py": (4096, 128, 6, 8, 256, 16),
    "GPT-2 small": (50257, 64, 12, 12, 768, 4),
}


def measure(name: str) -> dict[str, dict[str, float]]:
    """Seconds of the first rank by way, of one turn."""
    holder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(holder, 0)
    os.environ["TENSOROPT_HOME"] = holder[0]
    return {way: first_step(name, way != WITHOUT) for way in (WITHOUT, COMPARED, LATER)}


def first_step(name: str, check_capture: bool) -> dict[str, float]:
    """From a plan on."""
    vocabulary, tokens, layers, heads, width, rows = SIZES[name]
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary, tokens, layers, heads, width))
    batch = tuple(torch.randint(vocabulary, (2, rows, tokens)))
    plan = tensoropt_torch.find_strategy(model, batch, inputs="sharded", measure=False)
    own = [tensor.chunk(dist.get_world_size())[dist.get_rank()] for tensor in batch]
    dist.barrier()
    before = time.perf_counter(), time.process_time()
    parallel = tensoropt_torch.parallelize(model, plan, check_capture=check_capture)
    parallel(*own).backward()
    after = time.perf_counter(), time.process_time()
    return {"clock_s": after[0] - before[0], "processor_s": after[1] - before[1]}


def main() -> None:
    """Run the jobs, print medians, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(SIZES))
    arguments, _ = parser.parse_known_args()
    if arguments.worker:
        print_results(measure, arguments.models)
        return
    turns = [
        results_of_ranks(__file__, 2, arguments=["--models", *arguments.models])
        for _ in range(arguments.repeats)
    ]
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in arguments.models:
        found = {way: medians([turn[name][way] for turn in turns]) for way in turns[0][name]}
        results[name] = {"machine": machine(), "repeats": len(turns), "median": found}
        print(name, found)
    write_atomically(RESULTS, json.dumps(results, indent=1) + "\n")


def medians(turns: list[dict[str, float]]) -> dict[str, float]:
    """Of each figure."""
    return {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}


if __name__ == "__main__":
    main()
