"""Step times and memory beside what people write by hand: DDP, FSDP2.

    python benchmarks/step_time.py --ranks 2 4
    python benchmarks/step_time.py --ranks 2 --link 1gbit

In the same processes each model trains in turn with DDP, with FSDP2 (each block and the
whole), with our plain data parallelism, also without buckets of gradients or with local steps
of the optimizer, with our fastest plan and with the fastest one within FSDP2's peak of memory,
all with the same optimizer (Adam, foreach off) and batch. Ratios are those of one turn.
``--link`` limits the loopback, as in overlap.py. Writes its entries of
benchmarks/results/step_time.json.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tensoropt_torch
from benchmarks.links import run_on_links
from benchmarks.ranks import format_ratio, ratio_figures
from tensoropt_torch import emit
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.library import OPS

RESULTS = Path(__file__).parent / "results" / "step_time.json"
CPU = torch.device("cpu")
TURNS, STEPS, WARM_UPS = 5, 4, 2
MIB = 2**20

Batch = tuple[torch.Tensor, ...]


class Wide(nn.Module):
    """Layers with many parameters for each sample."""

    def __init__(self, width: int = 2048, layers: int = 4) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def gpt() -> tuple[nn.Module, Batch]:
    """6 layers of 256, 16 x 128 tokens of 4,096."""
    config = GPTConfig(vocab_size=4096, block_size=128, n_layer=6, n_head=8, n_embd=256)
    return GPT(config), tuple(torch.randint(4096, (2, 16, 128)))


def wide() -> tuple[nn.Module, Batch]:
    """4 layers of 2,048, 64 samples."""
    return Wide(), (torch.randn(64, 2048),)


MODELS: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {"gpt": gpt, "wide": wide}


@dataclass
class Mode:
    """A way to train, with what a step takes of memory."""

    step: Callable[[], torch.Tensor]
    peak_bytes: int
    loss: float


def made(name: str) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    return MODELS[name]()


def share(batch: Batch) -> Batch:
    return tuple(t.chunk(dist.get_world_size())[dist.get_rank()].clone() for t in batch)


def mode_of(make: Callable[[], tuple[nn.Module, Batch]], local: bool = False) -> Mode:
    """Makes a module and its optimizer, with local steps or stock ones, and counts the bytes of
    them and of a step."""
    OPS.count_allocations(True)
    module, batch = make()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4, foreach=False)
    if local:
        tensoropt_torch.local_step(optimizer)

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(*batch)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step()
    OPS.reset_peak_allocated()
    loss = step()
    peak = torch.tensor(OPS.peak_allocated())
    OPS.count_allocations(False)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    dist.all_reduce(loss)
    return Mode(step, int(peak), float(loss) / dist.get_world_size())


def ddp(name: str) -> tuple[nn.Module, Batch]:
    model, batch = made(name)
    return DistributedDataParallel(model), share(batch)


def fsdp(name: str) -> tuple[nn.Module, Batch]:
    model, batch = made(name)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, share(batch)


def modes_of(name: str) -> dict[str, Mode]:
    """All ways to train one model."""
    modes = {"DDP": mode_of(partial(ddp, name)), "FSDP2": mode_of(partial(fsdp, name))}
    model, batch = made(name)
    captured = capture(model, batch)
    cluster = tensoropt_torch.load_cluster("cpu")
    task = PlanningTask(captured, cluster, optimizer="adam", inputs="sharded")
    ranks = dist.get_world_size()
    frontier = find_frontier(task, ranks)
    (data_parallel,) = find_baselines(task, ranks, ("data parallel",))
    plain = data_parallel.plan(len(data_parallel.points) - 1)
    alone = replace(plain, settings=replace(plain.settings, bucket_bytes=0))
    plans = {"ours, data parallel": plain, "ours, data parallel without buckets": alone}
    plans["ours, fastest"] = frontier.fastest.plan
    plans["ours, memory of FSDP2"] = within(frontier, modes["FSDP2"].peak_bytes)
    for label, plan in plans.items():
        modes[label] = mode_of(partial(ours, plan, name))
    for label in ("ours, data parallel", "ours, fastest"):
        modes[f"{label}, local_step"] = mode_of(partial(ours, plans[label], name), local=True)
    return modes


def within(frontier: tensoropt_torch.Frontier, peak_bytes: int) -> Plan:
    """The fastest plan whose sum of memory is no more, or the smallest."""
    fitting = [point for point in frontier if point.memory_bytes <= peak_bytes]
    best = min(fitting, key=lambda point: point.time_s, default=frontier.smallest)
    return best.plan


def ours(plan: Plan, name: str) -> tuple[nn.Module, Batch]:
    model, batch = made(name)
    assert plan.captured is not None
    return emit.parallelize(model, plan.captured, plan, CPU), share(batch)


def time_of(mode: Mode) -> float:
    """Seconds of a step on the slowest rank."""
    times = []
    for index in range(WARM_UPS + STEPS):
        dist.barrier()
        began = time.perf_counter()
        mode.step()
        dist.barrier()
        if index >= WARM_UPS:
            times.append(time.perf_counter() - began)
    slowest = torch.tensor(statistics.median(times))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks: seconds by mode and turn, peaks, ratios to the best peer."""
    modes = modes_of(name)
    turns = [{label: time_of(mode) for label, mode in modes.items()} for _ in range(TURNS)]
    best = [min(turn["DDP"], turn["FSDP2"]) for turn in turns]
    rows = {}
    for label, mode in modes.items():
        seconds = [turn[label] for turn in turns]
        ratios = [s / b for s, b in zip(seconds, best, strict=True)]
        rows[label] = {
            "step_s": statistics.median(seconds),
            "steps_s": seconds,
            "peak_mib": mode.peak_bytes / MIB,
            "loss": mode.loss,
            "to_best_peer": ratio_figures(ratios),
        }
    return rows


def format_row(row: dict[str, Any]) -> str:
    """What a step takes, beside the best peer."""
    return (
        f"{row['step_s']:.3f} s, {row['peak_mib']:.0f} MiB, {format_ratio(row['to_best_peer'])} of "
        f"the best peer, loss {row['loss']:.5f}"
    )


if __name__ == "__main__":
    run_on_links(__file__, __doc__, measure, list(MODELS), RESULTS, format_row)
