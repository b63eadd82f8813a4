"""Frontiers with and without recomputation and micro-batches: predicted, simulated, measured.

    python benchmarks/recomputation.py --ranks 2 4

Plans without recomputation, and points of the frontiers with it, and with micro-batches as well,
train in turn in the same processes; times are those of the fastest plan without in the same
turn. Beside them plans that users know: data parallelism with every block checkpointed or none,
as the best strategies of those baselines. Writes benchmarks/results/recomputation.json and a
picture of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib as mpl
import torch
import torch.distributed as dist
from torch import nn

import tensoropt_torch
from benchmarks.links import run_on_links
from benchmarks.models import transformer as transformer_models
from benchmarks.models.small import small_gpt
from benchmarks.ranks import WORKER, format_ratio, ratio_figures
from benchmarks.training import CPU, Trainer
from tensoropt_torch.calibration.hardware import measure_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.plan.micro_batches import micro_batched
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.simulate import StepSettings, simulate_step

RESULTS = Path(__file__).parent / "results" / "recomputation.json"
PICTURE = RESULTS.with_suffix(".svg")
FASTEST = "without, fastest"
POINTS = 5
MICRO_BATCHES = (2, 4)
PASSES = 5
STEPS = 3
DEVICE_BUDGET_S = 5.0


def small_transformer() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Encoder and decoder of 4 layers of 256, 16 x 64 tokens."""
    config = transformer_models.TransformerConfig(
        vocab_size=1024, n_layer=4, n_head=4, head_size=64, n_embd=256, n_hidden=1024
    )
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1024, (3, 16, 64), generator=generator)
    return transformer_models.Transformer(config), tuple(tokens)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt": small_gpt,
    "transformer": small_transformer,
}


def plans(task: PlanningTask) -> Iterator[tuple[str, Plan]]:
    """Ends of the frontier and of data parallelism without recomputation, then with it."""
    ranks = dist.get_world_size()
    without = find_frontier(replace(task, recompute=False), ranks)
    yield FASTEST, without.fastest.plan
    yield "without, smallest", without.smallest.plan
    for name in ("data parallel", "ZeRO-3"):
        for how, recompute in (("", False), (", recomputed", True)):
            (found,) = find_baselines(replace(task, recompute=recompute), ranks, (name,))
            yield f"{name}{how}", found.plan(0)
    for point in find_frontier(task, ranks).thinned(POINTS):
        yield f"with, point {point.index}", point.plan
    halves = tuple(micro_batched(task.captured, count) for count in MICRO_BATCHES)
    for point in find_frontier(replace(task, in_micro_batches=halves), ranks).thinned(POINTS):
        if point.micro_batches > 1:
            label = f"{point.micro_batches} micro-batches, point {point.index}"
            yield label, point.plan


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks, by plan."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    cluster = measure_cluster(tensoropt_torch.load_cluster("cpu"), CPU, DEVICE_BUDGET_S)
    captured = capture(model, args)
    task = PlanningTask(captured, cluster, optimizer="adam", recompute=True)
    chosen = dict(plans(task))
    trainer = Trainer(model, args, task)
    runs = {label: trainer.start(plan) for label, plan in chosen.items()}
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(PASSES):
        for label, run in runs.items():
            times[label].append(run.times(STEPS).step_s)
    settings = StepSettings.on(CPU, task.optimizer)
    rows = {}
    for label, plan in chosen.items():
        ratios = [ours / best for ours, best in zip(times[label], times[FASTEST], strict=True)]
        rows[label] = {
            **ratio_figures(ratios),
            "step_s": times[label],
            "predicted_s": plan.time_s,
            "sum_bytes": plan.memory_bytes,
            "simulated_bytes": simulate_step(plan, captured, settings).peak_bytes,
            "measured_bytes": runs[label].peak_bytes(args),
        }
    trainer.close()
    return rows


def format_row(row: dict[str, Any]) -> str:
    """Its time as a ratio, and its peaks."""
    peaks = "simulated {simulated_bytes:,.0f}, measured {measured_bytes:,.0f} bytes".format(**row)
    return f"{format_ratio(row)}; {peaks}"


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
        for kind, colour in (
            ("without", "C0"),
            ("with, point", "C1"),
            ("data", "C2"),
            ("ZeRO", "C3"),
            ("micro-batches", "C4"),
        ):
            chosen = [row for label, row in rows.items() if kind in label]
            memory = [row["measured_bytes"] / 2**20 for row in chosen]
            axis.scatter(memory, [row["median_ratio"] for row in chosen], color=colour, label=kind)
            memory = [row["simulated_bytes"] / 2**20 for row in chosen]
            predicted = [row["predicted_s"] / base for row in chosen]
            axis.scatter(memory, predicted, color=colour, marker="x")
        axis.set(
            title=title, xlabel="peak per process, MiB", ylabel="step time (fastest without: 1)"
        )
    axes[0][0].set_ylabel("step time (fastest without: 1)")
    axes[0][0].legend(title="measured (predicted: x)")
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    run_on_links(__file__, __doc__, measure, list(MODELS), RESULTS, format_row)
    if WORKER not in sys.argv:
        draw(json.loads(RESULTS.read_text()))
