"""Steps of compiled parallel modules beside those that are not.

    python benchmarks/compiled.py --ranks 1 2

In the same processes the models of step_time.py train in turn as they are, under the ends of the
frontier, and under the same plans with ``compile=True``: Adam, the same batch. Ratios are those
of one turn, of seconds and of the seconds in which a process computes, which others on the machine
disturb less. ``made_s`` is what making the module and two steps took, compiling included.
``--link`` limits the loopback, as in overlap.py, ``--models`` runs some of them. Writes its
entries of benchmarks/results/compiled.json.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from torch import nn

from benchmarks.links import run_on_links
from benchmarks.models.small import MODELS, Batch
from benchmarks.ranks import format_ratio
from benchmarks.step_time import CPU, MIB, Mode, made, mode_of, ratios, share
from tensoropt_torch.emit.compilation import describe
from tensoropt_torch.module import ParallelModule, parallelize
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.tasks import Example, PlanningOptions, agreed_task

RESULTS = Path(__file__).parent / "results" / "compiled.json"
TURNS, STEPS = 5, 4
COMPILED = ", compiled"


def module_of(name: str, plan: Plan, compile: bool) -> tuple[nn.Module, Batch]:
    model, batch = made(name)
    assert plan.captured is not None
    module = parallelize(model, plan.captured, plan, CPU, compile=compile)
    return module, share(batch, dist.get_world_size())


def times_of(mode: Mode) -> dict[str, float]:
    """Seconds of a step on this rank, and those in which its processor computed, waiting for
    others left out."""
    mode.step()
    dist.barrier()
    began, computed = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        mode.step()
    dist.barrier()
    ended, computed = time.perf_counter(), time.process_time() - computed
    return {"step_s": (ended - began) / STEPS, "processor_s": computed / STEPS}


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks: for each plan its mode without and with compiling."""
    example = Example(*made(name))
    planning = PlanningOptions(optimizer="adam", inputs="sharded", measure=False)
    frontier = find_frontier(agreed_task(example, planning), dist.get_world_size())
    plans = {"fastest": frontier.fastest.plan}
    if len(frontier) > 1:
        plans["smallest"] = frontier.smallest.plan
    modes: dict[str, Mode] = {}
    rows: dict[str, Any] = {}
    for label, plan in plans.items():
        for suffix in ("", COMPILED):
            began = time.perf_counter()
            modes[label + suffix] = mode_of(partial(module_of, name, plan, bool(suffix)), plan)
            rows[label + suffix] = {"made_s": time.perf_counter() - began}
        module, _ = module_of(name, plan, True)
        assert isinstance(module, ParallelModule)
        rows[label + COMPILED]["compiled"] = describe(module.rank_graph)
    turns = [{label: times_of(mode) for label, mode in modes.items()} for _ in range(TURNS)]
    for label, mode in modes.items():
        rows[label] |= {"peak_mib": mode.peak_bytes / MIB, "loss": mode.loss}
        for what in ("step_s", "processor_s"):
            seconds = [turn[label][what] for turn in turns]
            rows[label] |= {what: statistics.median(seconds), f"turns_of_{what}": seconds}
            if label.endswith(COMPILED):
                plain = [turn[label.removesuffix(COMPILED)][what] for turn in turns]
                rows[label][f"{what}_to_uncompiled"] = ratios(seconds, plain)
    return rows


def format_row(row: dict[str, Any]) -> str:
    """What a step takes, beside that without compiling."""
    parts = [
        f"{row['step_s']:.3f} s, of which {row['processor_s']:.3f} s computing",
        f"{row['peak_mib']:.0f} MiB",
    ]
    if "compiled" in row:
        wall, computing = (row[f"{what}_to_uncompiled"] for what in ("step_s", "processor_s"))
        parts.append(
            f"{format_ratio(wall)} of the time without, computing {format_ratio(computing)}"
        )
        parts.append(f"{row['compiled']} compiled, made with two steps in {row['made_s']:.0f} s")
    return ", ".join([*parts, f"loss {row['loss']:.5f}"])


if __name__ == "__main__":
    run_on_links(__file__, __doc__, measure, list(MODELS), RESULTS, format_row)
