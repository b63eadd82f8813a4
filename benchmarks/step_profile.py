"""Where the time of a step goes: kernels, the network, the optimizer, and what else there is.

    python benchmarks/step_profile.py --ranks 2 4

A model of step_time.py trains with DDP, as ``find_strategy`` picks it without options, data
parallel by a plan, and as that would run without buckets and with steps on ``DTensor``s, in turn.
A step is timed by phase; PyTorch's profiler then tells, of other steps, what the kernels of ATen
take in forward and backward, whose share of the timed steps it is: the rest of a phase is Python,
dispatch, and waiting. Of plans the seconds in reshards are known as well, with their local copies
and the waiting for other ranks. Writes its entries of benchmarks/results/step_profile.json, and the
table of docs/runtime.md.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity

from benchmarks.links import run_on_links
from benchmarks.machine import processor
from benchmarks.models.small import LARGE, MODELS, Batch
from benchmarks.page import fill_tables, rows_of
from benchmarks.peers import peers
from benchmarks.ranks import WORKER
from benchmarks.step_time import ALL, OnDTensors, compared_plans, made, ours, planned, share
from tensoropt_torch.runtime.ops import network_timing

RESULTS = Path(__file__).parent / "results" / "step_profile.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "runtime.md"
TURNS, STEPS, WARM_UPS, PROFILED = 3, 3, 2, 2
PHASES = ("forward", "backward", "optimizer")

Make = Callable[[], tuple[nn.Module, Batch]]
Seconds = dict[str, float]


def profile(make: Make, optimizer_kind: type[torch.optim.Adam]) -> Seconds:
    """Medians of a module that is made for it, on this rank."""
    gc.collect()  # the one before: modules hold themselves
    module, batch = make()
    optimizer = optimizer_kind(module.parameters(), lr=1e-4, foreach=False)

    def step() -> list[float]:
        dist.barrier()
        marks = [time.perf_counter()]
        loss: torch.Tensor = module(*batch)
        marks.append(time.perf_counter())
        torch.autograd.backward(loss)
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        optimizer.zero_grad()
        return [end - begin for begin, end in itertools.pairwise(marks)]

    for _ in range(WARM_UPS):
        step()
    phases = zip(*(step() for _ in range(STEPS)), strict=True)
    found = dict(zip(PHASES, map(statistics.median, phases), strict=True))
    with network_timing() as network_s:
        for _ in range(PROFILED):
            step()
        found["reshards"] = network_s() / PROFILED
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(PROFILED):
            module(*batch).backward()
            optimizer.zero_grad()
    kernels_us = sum(
        event.self_cpu_time_total
        for event in profiled.key_averages()
        if event.key.startswith("aten::")
    )
    return found | {"kernels": kernels_us * 1e-6 / PROFILED}


def measure(name: str) -> dict[str, Any]:
    """By way to train: medians of turns."""
    rows = share(made(name)[1], dist.get_world_size())
    ddp = peers(ALL[name])["DDP"]
    pick, task, _ = planned(name)
    plain = compared_plans(pick, task)["ours, data parallel"]
    alone = replace(plain, settings=replace(plain.settings, bucket_bytes=0))
    ways: dict[str, tuple[Make, type[torch.optim.Adam]]] = {
        "DDP": (lambda: (ddp.make(made(name)[0]), rows), torch.optim.Adam),
        "ours": (partial(ours, pick, name), torch.optim.Adam),
        "ours, data parallel": (partial(ours, plain, name), torch.optim.Adam),
        "ours, without buckets, steps on DTensors": (partial(ours, alone, name), OnDTensors),
    }
    turns = [{label: profile(*way) for label, way in ways.items()} for _ in range(TURNS)]
    return {
        label: {
            part: statistics.median(turn[label][part] for turn in turns) for part in turns[0][label]
        }
        for label in ways
    }


def fill_page() -> None:
    """Of what there is, in ms."""
    results = json.loads(RESULTS.read_text())
    rows = [
        [
            f"{label}; {model}, {where}",
            *(f"{s * 1e3:.0f}" if s else "-" for s in row.values()),
            processor(job["machines"][model]),
        ]
        for where, job in results.items()
        for model, found in job["models"].items()
        for label, row in found.items()
    ]
    head = ["ms of a step", *PHASES, "in reshards", "kernels forward and backward", "measured on"]
    fill_tables(PAGE, {"step_profile": rows_of(head, rows)})


def format_row(row: Seconds) -> str:
    """In ms."""
    return ", ".join(f"{part} {seconds * 1e3:.0f}" for part, seconds in row.items()) + " ms"


if __name__ == "__main__":
    run_on_links(__file__, __doc__, measure, ["gpt"], RESULTS, format_row, [*MODELS, *LARGE])
    if WORKER not in sys.argv:
        fill_page()
