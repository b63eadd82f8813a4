"""What a step costs besides its operators: a module under a plan beside the model as it is.

    python benchmarks/overhead.py                  # --device cuda on a GPU

One process trains a model, as it is and under a plan, in turn: alone (1 rank), where a plan should
cost nothing, and as one of several that are data parallel, of which the others are made up: a fake
process group copies what it has where others would send. Then DistributedDataParallel has its turn
as well. A GPT with layers so small that they take no time, of which the overhead of each is what is
left; the layers of GPT-2 small; a ResNet. In float32 and under autocast to bfloat16. Writes its
entries of benchmarks/results/overhead.json, and the table of docs/runtime.md.

    python benchmarks/overhead.py --checks         # a minute or two

What is looked at in every step (``step_checks.py``) is measured on 2 processes that do train
together, into benchmarks/results/step_checks.json and a table of its own.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.machine import machine, processor
from benchmarks.models.small import Batch, small_resnet
from benchmarks.page import fill_tables, rows_of
from benchmarks.ranks import WORKER, format_ratio, print_results, ratio_figures, results_of_ranks
from benchmarks.step_checks import measure as measure_checks
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.module import parallelize
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.tasks import Example, PlanningOptions, task_of

RESULTS = Path(__file__).parent / "results" / "overhead.json"
CHECKS = Path(__file__).parent / "results" / "step_checks.json"
CHECKED = "gpt"  # of benchmarks/models/small.py
PAGE = Path(__file__).resolve().parents[1] / "docs" / "runtime.md"
PHASES = ("forward", "backward", "optimizer", "zero_grad")
WARM_UPS = 3
ROWS = 4  # of a rank, of texts
TINY = GPTConfig(vocab_size=64, block_size=8, n_layer=12, n_head=2, n_embd=16)
GPT2 = GPTConfig(vocab_size=50304, block_size=64, n_layer=12, n_head=12, n_embd=768)


def gpt(config: GPTConfig, ranks: int) -> tuple[nn.Module, Batch]:
    """With the batch of all ranks."""
    shape = (2, ROWS * ranks, config.block_size)
    return GPT(config), tuple(torch.randint(config.vocab_size, shape))


# What makes the model and its batch for so many ranks, and turns.
MODELS: dict[str, tuple[Callable[[int], tuple[nn.Module, Batch]], int]] = {
    "tiny layers": (partial(gpt, TINY), 60),
    "GPT-2 small": (partial(gpt, GPT2), 10),
    "ResNet": (lambda ranks: small_resnet(), 60),
}
PRECISIONS = ("float32", "bfloat16 autocast")

Step = Callable[[], list[float]]


def casting(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def step_of(module: nn.Module, batch: Batch, precision: str, device: torch.device) -> Step:
    """Trains, and gives the seconds of each phase."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def step() -> list[float]:
        marks = [now()]
        with casting(precision, device):
            loss: torch.Tensor = module(*batch)
        marks.append(now())
        torch.autograd.backward(loss)
        marks.append(now())
        optimizer.step()
        marks.append(now())
        optimizer.zero_grad()
        marks.append(now())
        return [after - before for before, after in itertools.pairwise(marks)]

    return step


def parallel(model: nn.Module, batch: Batch, precision: str, device: torch.device) -> nn.Module:
    """Under data parallelism, which is all there is for one rank."""
    ranks = dist.get_world_size()
    with casting(precision, device):
        planning = PlanningOptions(optimizer="adamw", inputs="sharded", measure=False)
        task = task_of(Example(model, batch, batch_norm_groups=ranks), planning)
    (baseline,) = find_baselines(task, ranks, ("data parallel",))
    plan = baseline.plan(len(baseline.points) - 1)
    assert plan.captured is not None
    return parallelize(model, plan.captured, plan, device)


def by_ddp(model: nn.Module) -> nn.Module:
    """A fake process group has no results that DDP could wait for: its buckets are divided, as
    they are before they are reduced, and there."""

    def divided(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer().div_(dist.get_world_size()))
        return future

    module = DistributedDataParallel(model)
    module.register_comm_hook(None, lambda _, bucket: divided(bucket))
    return module


def measure(name: str, precision: str, device: torch.device) -> dict[str, Any]:
    """Seconds of the phases, and ratios of whole steps to those of the model as it is."""
    make, turns = MODELS[name]
    ranks = dist.get_world_size()
    torch.manual_seed(0)
    model, batch = make(ranks)
    model.to(device)
    batch = tuple(tensor.to(device) for tensor in batch)
    own = tuple(tensor.chunk(ranks)[0].clone() for tensor in batch)
    modules = {"plain": model, "ours": parallel(model, batch, precision, device)}
    if ranks > 1:
        modules["DDP"] = by_ddp(copy.deepcopy(model))
    steps = {way: step_of(module, own, precision, device) for way, module in modules.items()}
    found: dict[str, list[list[float]]] = {way: [] for way in steps}
    for turn in range(WARM_UPS + turns):
        for way, step in steps.items():
            times = step()
            if turn >= WARM_UPS:
                found[way].append(times)
    figures: dict[str, Any] = {}
    for way, to_plain in found.items():
        ratios = [sum(a) / sum(b) for a, b in zip(to_plain, found["plain"], strict=True)]
        if way == "ours":
            figures |= ratio_figures(ratios)
        elif way == "DDP":
            figures["ratio_of_ddp"] = ratio_figures(ratios)
    for way, phases_of in found.items():
        figures[way] = {
            phase: statistics.median(times)
            for phase, times in zip(PHASES, zip(*phases_of, strict=True), strict=True)
        }
    return figures


def run_worker(ranks: int, kind: str, names: list[str], precisions: list[str]) -> None:
    """Prints what was measured as JSON."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    device = torch.empty(0, device=kind).device
    found = {
        name: {precision: measure(name, precision, device) for precision in precisions}
        for name in names
    }
    about = torch.cuda.get_device_name() if kind == "cuda" else "CPU"
    print(json.dumps({"device": about, "models": found}))
    dist.destroy_process_group()


def fill_page(results: dict[str, Any]) -> None:
    """The ratios, and the phases in ms."""

    def phases(of_way: dict[str, float] | None) -> str:
        return "-" if of_way is None else ", ".join(f"{of_way[p] * 1e3:.1f}" for p in PHASES[:3])

    rows = [
        [
            f"{model}, {precision}; {where}",
            format_ratio(figures),
            format_ratio(figures["ratio_of_ddp"]) if "DDP" in figures else "-",
            *(phases(figures.get(way)) for way in ("plain", "ours", "DDP")),
            processor(found["machine"]),
        ]
        for where, found in results.items()
        for model, by_precision in found["models"].items()
        for precision, figures in by_precision.items()
    ]
    head = ["", "ours", "DDP", "ms of the model", "of ours", "of DDP", "measured on"]
    fill_tables(PAGE, {"overhead": rows_of(head, rows)})


def run_checks(ranks: int) -> None:
    """Measures on so many processes, writes the JSON and fills the table."""
    found = results_of_ranks(__file__, ranks, arguments=["--checks"])
    key = f"CPU, {ranks} processes"
    results = json.loads(CHECKS.read_text()) if CHECKS.exists() else {}
    results[key] = {"machine": machine(), "models": found}
    write_atomically(CHECKS, json.dumps(results, indent=1) + "\n")
    rows = [
        [
            f"{part}; {model}, {where}",
            f"{figures['median_s'] * 1e3:.3f}",
            f"{figures['median_share']:.3%} ({figures['most_share']:.3%})",
            format_ratio(figures),
            f"{of_model['step_s'] * 1e3:.0f}",
            processor(job["machine"]),
        ]
        for where, job in results.items()
        for model, of_model in job["models"].items()
        for part, figures in of_model["parts"].items()
    ]
    head = ["", "ms", "of its step, median (most)", "steps with, to without", "ms of a step"]
    fill_tables(PAGE, {"step_checks": rows_of([*head, "measured on"], rows)})


def main() -> None:
    """Measures in processes of their own, prints the ratios, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--checks", action="store_true", help="only what is looked at in steps")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.checks:
        if arguments.worker:
            print_results(measure_checks, [CHECKED])
        else:
            run_checks(2)
        return
    if arguments.worker:
        run_worker(arguments.ranks[0], arguments.device, arguments.models, arguments.precisions)
        return
    output: Path = arguments.output
    results = json.loads(output.read_text()) if output.exists() else {}
    for ranks in arguments.ranks:
        command = [sys.executable, __file__, WORKER, "--device", arguments.device]
        command += ["--ranks", str(ranks), "--models", *arguments.models]
        command += ["--precisions", *arguments.precisions]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        key = f"{found['device']}, 1 of {ranks}"
        if results.get(key, {}).get("machine", machine()) != machine():
            key += f", {processor(machine())}"  # beside what another machine took
        earlier = results.get(key, {})
        kept = earlier.get("models", {}) if earlier.get("machine") == machine() else {}
        results[key] = {"machine": machine(), "models": {**kept, **found["models"]}}
        for name, by_precision in found["models"].items():
            for precision, figures in by_precision.items():
                print(f"{key}, {name}, {precision}: {format_ratio(figures)}")
        write_atomically(output, json.dumps(results, indent=1) + "\n")
    if output == RESULTS:
        fill_page(results)


if __name__ == "__main__":
    main()
