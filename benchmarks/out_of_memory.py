"""What ``on_out_of_memory="smaller"`` costs a step that does not run out.

    python benchmarks/out_of_memory.py

Steps of one model under one plan on 2 processes, with the option and without, in turns of some.
The ratio of one turn's seconds to those of the other beside it, and the same of the seconds in
which the first rank's processor computed, which others on the machine move less. Writes
benchmarks/results/out_of_memory.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from benchmarks.machine import machine
from benchmarks.ranks import WORKER, print_results, ratio_figures, results_of_ranks

RESULT = Path(__file__).parent / "results" / "out_of_memory.json"
RANKS, TURNS, STEPS = 2, 20, 10
WIDTHS = (64, 512)  # of small steps, which the option costs most, and of larger ones
LAYERS = 6


class Layers(nn.Module):
    """(rows, width) -> a loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x.square().mean()


def turn(module: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> list[float]:
    """Seconds, and those of the processor, of some steps."""
    dist.barrier()
    begin = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        module(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [time.perf_counter() - begin[0], time.process_time() - begin[1]]


def measure(name: str) -> Any:
    """On every rank."""
    width = int(name)
    torch.manual_seed(0)
    model, x = Layers(width), torch.randn(width, width)
    plan = tensoropt_torch.find_frontier(model, (x,)).fastest.plan
    made = {
        which: tensoropt_torch.parallelize(Layers(width), plan, on_out_of_memory=which)
        for which in ("smaller", "raise")
    }
    runs = {which: (m, torch.optim.SGD(m.parameters(), lr=1e-3)) for which, m in made.items()}
    for run in runs.values():
        turn(*run, x)
    pairs = [{which: turn(*run, x) for which, run in runs.items()} for _ in range(TURNS)]
    ratios = {}
    for place, what in enumerate(("seconds", "processor_seconds")):
        found = [pair["smaller"][place] / pair["raise"][place] for pair in pairs]
        ratios[what] = ratio_figures(found)
    step_ms = sorted(pair["raise"][0] for pair in pairs)[TURNS // 2] / STEPS * 1e3
    return {"step_ms_without": step_ms, "ratio": ratios}


def main() -> None:
    """Measures, and writes what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(WORKER, action="store_true", dest="worker")
    given, names = parser.parse_args(), [str(width) for width in WIDTHS]
    if given.worker:
        print_results(measure, names)
        return
    found = results_of_ranks(str(Path(__file__).resolve()), RANKS)
    record = {"machine": machine(), "ranks": RANKS, "turns": TURNS, "by_width": found}
    RESULT.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
