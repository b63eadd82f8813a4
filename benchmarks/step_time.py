"""Step times and memory beside what people write by hand: DDP, FSDP2, tensor parallelism.

    python benchmarks/step_time.py --ranks 2 4
    python benchmarks/step_time.py --ranks 2 --link 1gbit

In the same processes each model trains in turn with each of benchmarks/peers.py and with plans
of ours, all with the same optimizer (Adam, foreach off) and global batch. ``ours`` is what a
user gets without options, planned with nothing measured before; for each peer there is the
fastest point within its peak of memory. Others of ours tell how good the pick was: what is
predicted to be fastest, the smallest point, the knee and known strategies; data parallelism
without buckets; and steps of the optimizer on ``DTensor``s. Their times are predicted by the costs
before plans were run, and by those that the run plans of ``ours`` corrected, of which the points
within a peer's memory are. Modules that need much memory are made again in each turn, of which
there are fewer then; of steps that take longer than a second a turn has fewer. Ratios are those of
one turn.
``--link`` limits the loopback, as in overlap.py, ``--models`` runs some of them. Writes its
entries of benchmarks/results/step_time.json, a picture of all entries, and the tables of
docs/step-times.md.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from torch import nn

import tensoropt_torch
from benchmarks.links import run_on_links
from benchmarks.models.small import LARGE, MODELS, STUDY, Batch
from benchmarks.peers import Peer, peers
from benchmarks.ranks import WORKER, format_ratio, ratio_figures
from benchmarks.step_time_page import fill_page
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.module import parallelize
from tensoropt_torch.operators import OPS
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space
from tensoropt_torch.tasks import Example, PlanningOptions, agreed_task

RESULTS = Path(__file__).parent / "results" / "step_time.json"
CPU = torch.device("cpu")
ALL = {**MODELS, **LARGE, **STUDY}
TURNS, STEPS, WARM_UPS = 5, 4, 2
SLOW_S, SLOW_STEPS, SLOW_WARM_UPS = 1.0, 2, 1  # of steps that take longer
LARGE_TURNS, LARGE_STEPS, LARGE_WARM_UPS = 3, 2, 2  # DDP makes buckets anew in the second
MIB = 2**20
LARGE_BYTES = 2048 * MIB  # of all ranks; so much is not kept for the next turn


class OnDTensors(torch.optim.Adam):
    """A step of which nobody knows what it does, so that it gets the parameters as they are."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


Step = Callable[[], torch.Tensor]


@dataclass
class Mode:
    """A way to train, with what a step takes of memory, and what was predicted of its time."""

    start: Callable[[], Step]
    peak_bytes: int
    loss: float
    first_s: float  # what a step took when it was made
    plan: Plan | None = None
    predicted_s: tuple[float, float] | None = None  # before plans were run, and after
    kept: Step | None = None

    @property
    def is_large(self) -> bool:
        """Whether it is made again in each turn."""
        return self.kept is None


def made(name: str) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    return ALL[name].make()


def share(batch: Batch, groups: int) -> Batch:
    """Of this rank, where neighbours are given the same."""
    index = dist.get_rank() * groups // dist.get_world_size()
    return tuple(tensor.chunk(groups)[index].clone() for tensor in batch)


def step_of(
    make: Callable[[], tuple[nn.Module, Batch]],
    optimizer_kind: type[torch.optim.Adam] = torch.optim.Adam,
) -> Step:
    """Makes a module and its optimizer; what is returned trains them by a step."""
    module, batch = make()
    optimizer = optimizer_kind(module.parameters(), lr=1e-4, foreach=False)

    def step() -> torch.Tensor:
        loss: torch.Tensor = module(*batch)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def mode_of(
    make: Callable[[], tuple[nn.Module, Batch]],
    plan: Plan | None = None,
    optimizer_kind: type[torch.optim.Adam] = torch.optim.Adam,
) -> Mode:
    """Makes a module and its optimizer, and counts the bytes of them and of a step."""
    start = partial(step_of, make, optimizer_kind)
    OPS.count_allocations(True)
    step = start()
    step()
    OPS.reset_peak_allocated()
    began = time.perf_counter()
    loss = step()
    took = torch.tensor(time.perf_counter() - began)
    peak = torch.tensor(OPS.peak_allocated())
    OPS.count_allocations(False)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    dist.all_reduce(loss)
    mean_loss = float(loss) / dist.get_world_size()
    kept = step if int(peak) * dist.get_world_size() < LARGE_BYTES else None
    mode = Mode(start, int(peak), mean_loss, float(took), plan, kept=kept)
    del step
    gc.collect()  # modules hold themselves
    return mode


def by_hand(name: str) -> dict[str, Mode]:
    """The peers."""

    def make(peer: Peer) -> tuple[nn.Module, Batch]:
        model, batch = made(name)
        return peer.make(model), share(batch, peer.data_groups)

    found = peers(ALL[name])
    return {peer_name: mode_of(partial(make, peer)) for peer_name, peer in found.items()}


def ours(plan: Plan, name: str) -> tuple[nn.Module, Batch]:
    model, batch = made(name)
    assert plan.captured is not None
    return parallelize(model, plan.captured, plan, CPU), share(batch, dist.get_world_size())


def planned(name: str) -> tuple[Plan, PlanningTask, float]:
    """What a user gets without options, what it is a plan of, with all that was measured, and
    the seconds of planning."""
    model, batch = made(name)
    began = time.perf_counter()
    # What DistributedDataParallel computes, where there is batch normalisation.
    example = Example(model, batch, batch_norm_groups=dist.get_world_size())
    planning = PlanningOptions(optimizer="adam", inputs="sharded")
    plan = tensoropt_torch.find_strategy(example, planning=planning)
    planned_s = time.perf_counter() - began
    return plan, agreed_task(example, planning), planned_s


def compared_plans(
    pick: Plan, task: PlanningTask, peaks: Mapping[str, int] | None = None
) -> dict[str, Plan]:
    """The pick; what is predicted to be fastest with nothing run; and by the costs of the pick
    what fits the ``peaks`` of peers, the knee, the smallest point and known strategies."""
    ranks = dist.get_world_size()
    plans = {"ours": pick, "ours, predicted to be fastest": find_frontier(task, ranks).fastest.plan}
    corrected = with_costs_of(pick, task)
    frontier = find_frontier(corrected, ranks)
    for peer_name, peak_bytes in (peaks or {}).items():
        plans[f"ours, memory of {peer_name}"] = within(frontier, peak_bytes)
    plans["ours, knee"] = frontier.knee.plan
    plans["ours, smallest"] = frontier.smallest.plan
    for baseline in find_baselines(corrected, ranks, ("data parallel", "ZeRO-3", "Megatron")):
        if baseline.points:
            plans[f"ours, {baseline.name}"] = baseline.plan(len(baseline.points) - 1)
    return plans


def program_of(plan: Plan) -> str:
    """Alike where plans run the same: costs decide on programs."""
    return f"{plan.strategy_hash} {asdict(plan.settings)}"


def modes_of(name: str) -> tuple[dict[str, Mode], float]:
    """All ways to train one model, the peers first, and the seconds of planning."""
    modes = by_hand(name)
    pick, task, planned_s = planned(name)
    plans = compared_plans(pick, task, {peer: mode.peak_bytes for peer, mode in modes.items()})
    predicted = plans["ours, predicted to be fastest"]
    made_of: dict[str, str] = {}  # those that run the same are run once
    for label, plan in plans.items():
        first = made_of.setdefault(program_of(plan), label)
        modes[label] = modes[first] if first != label else mode_of(partial(ours, plan, name), plan)
        modes[label].predicted_s = predicted_s(plan, predicted), predicted_s(plan, pick)
    plain = plans["ours, data parallel"]
    alone = replace(plain, settings=replace(plain.settings, bucket_bytes=0))
    modes["ours, data parallel without buckets"] = mode_of(partial(ours, alone, name))
    picked = partial(ours, pick, name)
    modes["ours, steps on DTensors"] = mode_of(picked, optimizer_kind=OnDTensors)
    return modes, planned_s


def within(frontier: tensoropt_torch.Frontier, peak_bytes: int) -> Plan:
    """The fastest plan whose sum of memory is no more, or the smallest."""
    fitting = [point for point in frontier if point.memory_bytes <= peak_bytes]
    best = min(fitting, key=lambda point: point.time_s, default=frontier.smallest)
    return best.plan


def with_costs_of(plan: Plan, task: PlanningTask) -> PlanningTask:
    """The task by the costs of a plan of it."""
    settings = plan.settings
    return replace(
        task,
        cluster=parse_cluster(settings.cluster, "the plan"),
        measured=settings.measured,
        operators=settings.operators,
    )


def predicted_s(plan: Plan, other: Plan) -> float:
    """The step time of a plan by the costs of another one of the same model."""
    assert other.captured is not None
    space = make_space(other.captured, other.settings)
    strategy = plan.choices.strategy(space)
    seconds: float = space.compute_time(strategy) + space.network_time(strategy)
    return seconds


def time_of(mode: Mode) -> float:
    """Seconds of a step on the slowest rank."""
    large = mode.is_large
    warm_ups, steps = WARM_UPS, STEPS
    if large:
        warm_ups, steps = LARGE_WARM_UPS, LARGE_STEPS
    elif mode.first_s > SLOW_S:
        warm_ups, steps = SLOW_WARM_UPS, SLOW_STEPS
    step = mode.kept or mode.start()
    step_s = median_time(step, warm_ups, steps)
    if large:
        del step
        gc.collect()
    return step_s


def median_time(step: Step, warm_ups: int, steps: int) -> float:
    """Seconds of a step on the slowest rank, of so many after others."""
    times = []
    for index in range(warm_ups + steps):
        dist.barrier()
        began = time.perf_counter()
        step()
        dist.barrier()
        if index >= warm_ups:
            times.append(time.perf_counter() - began)
    slowest = torch.tensor(statistics.median(times))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def measure(name: str) -> dict[str, Any]:
    """One model on all ranks, by mode: seconds of each turn, peaks, predictions, and ratios
    to the fastest peer and to the one whose memory is the limit."""
    modes, planned_s = modes_of(name)
    different = {id(mode): mode for mode in modes.values()}
    count = LARGE_TURNS if any(mode.is_large for mode in different.values()) else TURNS
    turns = [{key: time_of(mode) for key, mode in different.items()} for _ in range(count)]
    seconds = {label: [turn[id(mode)] for turn in turns] for label, mode in modes.items()}
    by_peer = (seconds[peer_name] for peer_name in peers(ALL[name]))
    best = [min(times) for times in zip(*by_peer, strict=True)]
    rows: dict[str, Any] = {}
    for label, mode in modes.items():
        rows[label] = {
            "step_s": statistics.median(seconds[label]),
            "steps_s": seconds[label],
            "peak_mib": mode.peak_bytes / MIB,
            "loss": mode.loss,
            "to_best_peer": ratios(seconds[label], best),
        }
        if mode.plan is not None:
            rows[label]["predicted_mib"] = mode.plan.memory_bytes / MIB
        if mode.predicted_s is not None:
            rows[label]["predicted_s"], rows[label]["corrected_s"] = mode.predicted_s
        _, _, peer = label.partition("memory of ")
        if peer:
            rows[label]["to_that_peer"] = ratios(seconds[label], seconds[peer])
    rows["ours"]["planned_s"] = planned_s
    picked = modes["ours"].plan
    assert picked is not None
    rows["ours"]["summary"] = picked.summary()
    rows["ours"]["raced_s"] = picked.measured_s  # what its steps took when it was picked
    return rows


def ratios(seconds: list[float], others: list[float]) -> dict[str, Any]:
    """Of the same turns."""
    return ratio_figures([s / other for s, other in zip(seconds, others, strict=True)])


def format_row(row: dict[str, Any]) -> str:
    """What a step takes, beside the best peer."""
    parts = [
        f"{row['step_s']:.3f} s",
        f"{row['peak_mib']:.0f} MiB",
        f"{format_ratio(row['to_best_peer'])} of the best peer",
    ]
    if "to_that_peer" in row:
        parts.append(f"{format_ratio(row['to_that_peer'])} of that peer")
    if "predicted_s" in row:
        parts.append(f"{row['predicted_s']:.3f} s predicted")
        parts.append(f"{row['corrected_s']:.3f} s by corrected costs")
    if "planned_s" in row:
        parts.append(f"planned in {row['planned_s']:.0f} s")
    return ", ".join([*parts, f"loss {row['loss']:.5f}"])


def draw(results: dict[str, Any]) -> Figure:
    """Steps as a share of those of the fastest peer, a panel for each job: median and quartiles
    of peers and of what is picked."""
    markers = {"DDP": "s", "FSDP2": "D", "TP": "^", "TP x DP": "v", "TP x FSDP2": "<", "ours": "o"}
    figure = Figure(figsize=(4.2 * len(results), 3.4), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
    for axes, (where, job) in zip(panels, results.items(), strict=True):
        for place, (label, marker) in enumerate(markers.items()):
            shown = [
                (index + 0.1 * (place - 2.5), rows[label]["to_best_peer"])
                for index, rows in enumerate(job["models"].values())
                if label in rows
            ]
            middles = [ratio["median_ratio"] for _, ratio in shown]
            ends = zip(*(ratio["quartiles_of_ratio"] for _, ratio in shown), strict=True)
            lengths = [
                [abs(end - middle) for end, middle in zip(side, middles, strict=True)]
                for side in ends
            ]
            axes.errorbar([x for x, _ in shown], middles, lengths or None, fmt=marker, label=label)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xticks(range(len(job["models"])), list(job["models"]))
        axes.set(title=where, yscale="log", ylabel="step time (fastest peer: 1)")
        axes.yaxis.set_major_locator(FixedLocator([0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    panels[0].legend(fontsize="small")
    return figure


if __name__ == "__main__":
    on_demand = [*LARGE, *STUDY]
    run_on_links(__file__, __doc__, measure, list(MODELS), RESULTS, format_row, on_demand)
    if WORKER not in sys.argv:
        matplotlib.rcParams["svg.hashsalt"] = "step_time"
        picture = draw(json.loads(RESULTS.read_text()))
        picture.savefig(RESULTS.with_suffix(".svg"), metadata={"Date": None})
        fill_page()
