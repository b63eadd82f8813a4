"""Frontiers with and without recomputation and micro-batches: predicted, simulated, measured.

    python benchmarks/recomputation.py --ranks 2 4

Plans of three frontiers (sharding alone, with recomputation, with recomputation and
micro-batches) train in turn in the same processes; times are those of the fastest plan of
sharding alone in the same turn. They are those that a memory limit picks: by simulated peaks.
Beside them plans that users know: data parallelism with every block checkpointed or none, as
the best strategies of those baselines. Writes benchmarks/results/recomputation.json and a
picture of it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib as mpl
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from benchmarks.links import run_on_links
from benchmarks.models.small import small_gpt, small_transformer
from benchmarks.ranks import WORKER, format_ratio, ratio_figures
from benchmarks.training import CPU, Trainer
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure.hardware import measure_cluster
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.points import thinned_indices
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.simulate import StepSettings, simulate_frontier, simulate_step
from tensoropt_torch.units import format_bytes

RESULTS = Path(__file__).parent / "results" / "recomputation.json"
PICTURE = RESULTS.with_suffix(".svg")
SHARDING, RECOMPUTED, MICRO_BATCHED = "sharding", "recomputation", "and micro-batches"
FASTEST = f"{SHARDING}, point 0"
CANDIDATES = 10  # points of a frontier that are simulated
POINTS = 4  # of those that are run
MICRO_BATCHES = (2, 4, 8)
PASSES = 3
STEPS = 3
DEVICE_BUDGET_S = 5.0


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt": small_gpt,
    "transformer": partial(small_transformer, layers=2, batch=64),
}


def tasks(task: PlanningTask) -> dict[str, PlanningTask]:
    """What the three frontiers are searched for."""
    smaller = tuple(micro_batched(task.captured, count) for count in MICRO_BATCHES)
    recomputed = replace(task, recompute=True)
    return {
        SHARDING: task,
        RECOMPUTED: recomputed,
        MICRO_BATCHED: replace(recomputed, in_micro_batches=smaller),
    }


def points(task: PlanningTask, step: StepSettings) -> list[Plan]:
    """Of a frontier by simulated peaks, the fastest first."""
    frontier = find_frontier(task, dist.get_world_size())

    def simulated() -> list[tuple[int, int]]:
        found = simulate_frontier(frontier, step, CANDIDATES)
        return [(one.point.index, one.peak_bytes) for one in reversed(found)]

    peaks = from_first_rank(simulated)
    chosen = [peaks[index] for index in thinned_indices(len(peaks), POINTS)]
    return [replace(frontier[index].plan, peak_bytes=peak) for index, peak in chosen]


def plans(task: PlanningTask, step: StepSettings) -> Iterator[tuple[str, Plan]]:
    """Of the three frontiers, and of data parallelism without recomputation and with it."""
    found = tasks(task)
    for name, own in found.items():
        for number, plan in enumerate(points(own, step)):
            yield f"{name}, point {number}", plan
    for name in ("data parallel", "ZeRO-3"):
        for how, own in (("", task), (", recomputed", found[RECOMPUTED])):
            (baseline,) = find_baselines(own, dist.get_world_size(), (name,))
            plan = baseline.plan(0)
            simulated = from_first_rank(partial(simulate_step, plan, task.captured, step))
            yield f"{name}{how}", replace(plan, peak_bytes=simulated.peak_bytes)


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks, by plan."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    cluster = measure_cluster(tensoropt_torch.load_cluster("cpu"), CPU, DEVICE_BUDGET_S)
    captured = capture(model, args)
    task = PlanningTask(captured, cluster, optimizer="adam")
    chosen = dict(plans(task, StepSettings.on(CPU, task.optimizer)))
    trainer = Trainer(model, args, task)
    runs = {label: trainer.start(plan) for label, plan in chosen.items()}
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(PASSES):
        for label, run in runs.items():
            times[label].append(run.times(STEPS).step_s)
    rows = {}
    for label, plan in chosen.items():
        ratios = [ours / best for ours, best in zip(times[label], times[FASTEST], strict=True)]
        rows[label] = {
            **ratio_figures(ratios),
            "step_s": times[label],
            "predicted_s": plan.time_s,
            "sum_bytes": plan.memory_bytes,
            "micro_batches": plan.settings.micro_batches,
            "simulated_bytes": plan.peak_bytes,
            "measured_bytes": runs[label].peak_bytes(args),
        }
    trainer.close()
    return rows


def format_row(row: dict[str, Any]) -> str:
    """Its time as a ratio, and its peaks."""
    peaks = "simulated {simulated_bytes:,.0f}, measured {measured_bytes:,.0f} bytes".format(**row)
    return f"{format_ratio(row)}; {peaks}"


def conclusions(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """How far the least measured peak falls, and what is fastest within the peaks of others."""
    least = {
        kind: min(row["measured_bytes"] for label, row in rows.items() if label.startswith(kind))
        for kind in (SHARDING, RECOMPUTED, MICRO_BATCHED)
    }
    for kind, peak in least.items():
        fall = least[SHARDING] / peak
        yield f"least peak, {kind}: {format_bytes(peak)}, a fall by {fall:.2f}"
    ours = [row for label, row in rows.items() if "point" in label]
    for label, row in rows.items():
        if label.startswith((RECOMPUTED, MICRO_BATCHED)):
            continue
        fitting = [own for own in ours if own["measured_bytes"] <= row["measured_bytes"]]
        best = min(own["median_ratio"] for own in fitting) if fitting else math.inf
        yield f"within the peak of {label}: {best / row['median_ratio']:.2f} of its step time"


def draw(results: dict[str, Any]) -> None:
    """Time against peak, measured and predicted, a panel for each model and job."""
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "tensoropt", "font.size": 8})
    from matplotlib import pyplot as plt

    panels = [
        (f"{model}, {where}", rows)
        for where, job in results.items()
        for model, rows in job["models"].items()
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 3), squeeze=False)
    for (title, rows), axis in zip(panels, axes[0], strict=True):
        base = rows[FASTEST]["predicted_s"]
        for number, kind in enumerate((SHARDING, RECOMPUTED, MICRO_BATCHED, "data", "ZeRO")):
            chosen = [row for label, row in rows.items() if label.startswith(kind)]
            ratios = [row["median_ratio"] for row in chosen]
            predicted = [row["predicted_s"] / base for row in chosen]
            measured_mib = [row["measured_bytes"] / 2**20 for row in chosen]
            simulated_mib = [row["simulated_bytes"] / 2**20 for row in chosen]
            colour, line = f"C{number}", "-" if number < 3 else ""
            axis.plot(measured_mib, ratios, line, marker="o", color=colour, label=kind, ms=3)
            axis.plot(simulated_mib, predicted, marker="x", color=colour, ls="", ms=4)
        axis.set(title=title, xlabel="peak per process, MiB")
    axes[0][0].set_ylabel("step time (fastest of sharding: 1)")
    axes[0][0].legend(title="measured (predicted: x)")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    run_on_links(__file__, __doc__, measure, list(MODELS), RESULTS, format_row)
    if WORKER not in sys.argv:
        written = json.loads(RESULTS.read_text())
        draw(written)
        for place, job in written.items():
            for model_name, model_rows in job["models"].items():
                for line in conclusions(model_rows):
                    print(f"{place}, {model_name}: {line}")
