"""How far predictions are from measurements, on processes of this machine.

    python benchmarks/estimation_error.py                # all, about an hour on 2 cores
    python benchmarks/estimation_error.py --quick        # small, to see it work

For 2 and 4 Gloo processes: the hardware is profiled, then for an RNN, a WideResNet and
a Transformer random strategies (seeded, none left out) are predicted and run, and
points of the frontier as well. Beside it what volume over bandwidth would predict, and
collectives at sizes between those that were profiled. Run it on a calm machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import tensoropt_torch
from benchmarks.machine import machine
from benchmarks.models.rnn import RNN, RNNConfig
from benchmarks.models.transformer import Transformer, TransformerConfig
from benchmarks.models.wide_resnet import WideResNet, WideResNetConfig
from tensoropt_torch import _C, emit
from tensoropt_torch.calibration import (
    MeasureOptions,
    ProfileOptions,
    ValidationOptions,
    scaled,
    scales_of,
    validate,
)
from tensoropt_torch.calibration.job import with_operators, with_profile
from tensoropt_torch.calibration.runs import OPTIMIZERS, time_steps
from tensoropt_torch.calibration.validation import mean_error, spearman
from tensoropt_torch.config.cluster import COLLECTIVES, Runtime
from tensoropt_torch.emit.parallelize import RankContext
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.options import PlanningTask, find_frontier
from tensoropt_torch.planner.space import core_cluster, make_planner
from tensoropt_torch.profiler.collectives import MIN_BYTES, measure_sizes
from tensoropt_torch.profiler.hardware import HardwareProfile
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.runtime.groups import AxisGroups

RESULTS = Path(__file__).parent / "results" / "estimation_error.json"
FIRST_SEED = 1000  # others than those whose operators are measured
FITTED_SEED = 2000  # of the strategies that the scales come from
REPEATED = 4  # strategies that are measured twice, for the noise
CPU = torch.device("cpu")

Example = tuple[nn.Module, tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Effort:
    """How much is run."""

    strategies: int = 20
    fitted: int = 6
    frontier_points: int = 8
    steps: int = 15
    hardware_s: float = 90.0
    operators_s: float = 150.0
    max_bytes: int = 16 << 20
    held_back_s: float = 60.0


QUICK = Effort(3, 2, 2, 3, 15.0, 20.0, 1 << 20, 5.0)


def rnn() -> Example:
    config = RNNConfig(vocab_size=2048, n_layer=2, n_hidden=256)
    tokens = torch.randint(0, 2048, (2, 32, 16))
    return RNN(config), (tokens[0], tokens[1])


def wide_resnet() -> Example:
    config = WideResNetConfig(blocks=(1, 1, 1, 1), width=32, image_size=64, n_class=128)
    return WideResNet(config), (torch.randn(16, 3, 64, 64), torch.randint(0, 128, (16,)))


def transformer() -> Example:
    config = TransformerConfig(
        vocab_size=2048, n_layer=2, n_head=8, head_size=32, n_embd=256, n_hidden=1024
    )
    tokens = torch.randint(0, 2048, (3, 16, 32))
    return Transformer(config), (tokens[0], tokens[1], tokens[2])


MODELS: dict[str, Callable[[], Example]] = {
    "rnn": rnn,
    "wide_resnet": wide_resnet,
    "transformer": transformer,
}


# --- On every rank -------------------------------------------------------------


def held_back(profile: HardwareProfile, effort: Effort) -> dict[str, float]:
    """Interpolated collectives against measured ones at sizes between the profile's,
    and two measurements of the profile's own sizes against each other."""
    sizes = [size for size, _ in profile.mesh_axes]
    mesh = _C.Mesh(list(profile.mesh_axes))
    table = {
        (_C.Collective.__members__[name.upper()], axes): list(curve)
        for name, axes, curve in profile.curves
    }
    analytic = _C.AnalyticCollectives(core_cluster(profile.cluster, profile.mesh_axes), mesh)
    model = _C.MeasuredCollectives(mesh, table, analytic)
    groups = AxisGroups(sizes)
    axis_sets = range(1, 2 ** len(sizes))
    groups.create(axis_sets)
    powers = [2**i for i in range(MIN_BYTES.bit_length() - 1, effort.max_bytes.bit_length() - 1)]
    between, again = [], []
    share_s = effort.held_back_s / (2 * len(axis_sets) * len(COLLECTIVES))
    for axes in axis_sets:
        for name in COLLECTIVES:
            kind = _C.Collective.__members__[name.upper()]
            for wanted, errors in (([3 * p // 2 for p in powers], between), (powers, again)):
                for size, seconds in measure_sizes(groups, name, axes, wanted, share_s):
                    errors.append(abs(model.time_s(kind, axes, size) / seconds - 1))
    groups.close()
    return {"median_error": statistics.median(between), "median_noise": statistics.median(again)}


def plain_task(task: PlanningTask, profile: HardwareProfile) -> PlanningTask:
    """Volume over bandwidth and FLOPs over rate: neither latencies nor launches."""
    ranks = profile.num_devices
    everything = 2 ** len(profile.mesh_axes) - 1
    curve = next(
        c for name, axes, c in profile.curves if (name, axes) == ("all_reduce", everything)
    )
    size, seconds = curve[-1]
    bandwidth = 2 * (ranks - 1) / ranks * size / seconds
    device = replace(task.cluster.device, launch_overhead_s=0.0, runtime=Runtime())
    levels = tuple(
        replace(level, bandwidth_bytes_per_s=bandwidth, latency_s=0.0)
        for level in task.cluster.levels
    )
    cluster = replace(task.cluster, device=device, levels=levels)
    return replace(task, cluster=cluster, measured=(), measured_on=0, operators=())


def study(name: str, profile: HardwareProfile, effort: Effort) -> dict[str, Any]:
    """One model on all ranks."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    count = dist.get_world_size()
    task = PlanningTask(capture(model, args), tensoropt_torch.load_cluster("cpu"))
    task = with_profile(task, profile)
    plain = plain_task(task, profile)
    groups = AxisGroups([size for size, _ in profile.mesh_axes])
    groups.create(range(1, 2 ** len(groups.sizes)))
    options = MeasureOptions(operator_budget_s=effort.operators_s, random_strategies=8)
    task = with_operators(task, count, CPU, groups, options)
    groups.close()
    fitted = ValidationOptions(effort.fitted, FITTED_SEED, effort.steps)
    scales = scales_of(validate(model, task, (args, {}), CPU, fitted))
    task = scaled(task, scales)
    wanted = ValidationOptions(effort.strategies, FIRST_SEED, effort.steps)
    found = validate(model, task, (args, {}), CPU, wanted)
    repeats = ValidationOptions(min(REPEATED, effort.strategies), FIRST_SEED, effort.steps)
    again = validate(model, task, (args, {}), CPU, repeats)
    planners = [make_planner(t.captured, t.settings(count)) for t in (task, plain)]
    measured = [row.measured_step_s for row in found.rows]
    pairs: list[tuple[float, float]] = []
    steps: list[float] = []
    for row in found.rows:
        strategy = planners[0].random_strategy(row.seed)
        network_s = planners[1].network_time(strategy)
        pairs.append((network_s, row.measured_network_s))
        steps.append(network_s + planners[1].compute_time(strategy))
    return {
        "ours": found.to_record(),
        "volume_over_bandwidth": {
            "network_error": mean_error(pairs),
            "step_error": mean_error(list(zip(steps, measured, strict=True))),
            "rank_correlation": spearman(steps, measured),
            "network_s": [predicted for predicted, _ in pairs],
            "step_s": steps,
        },
        "noise": mean_error(
            [
                (second.measured_step_s, first.measured_step_s)
                for first, second in zip(found.rows, again.rows, strict=False)
            ]
        ),
        "operators_measured": len(task.operators),
        "scales": asdict(scales),
        "choice": choice(model, args, task, effort, measured),
    }


def choice(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    task: PlanningTask,
    effort: Effort,
    random_s: list[float],
) -> dict[str, Any]:
    """Whether the strategy that ``mini_time`` picks is the fastest of all that were run."""
    frontier = from_first_rank(lambda: _points(task, effort.frontier_points))
    settings = task.settings(dist.get_world_size())
    context = RankContext.make([size for size, _ in settings.mesh_axes], CPU)
    rows = []
    for plan in frontier:
        module = emit.parallelize(model, task.captured, plan, CPU, context)
        optimizer = OPTIMIZERS[task.optimizer](module)
        times = time_steps(module, optimizer, partial(module, *args), effort.steps)
        rows.append({"step_s": plan.time_s, "measured_step_s": times.step_s})
    context.groups.close()
    picked = rows[-1]["measured_step_s"]
    fastest = min([row["measured_step_s"] for row in rows] + random_s)
    return {
        "points": rows,
        "picked_s": picked,
        "fastest_s": fastest,
        "slower": picked / fastest - 1,
    }


def _points(task: PlanningTask, count: int) -> list[Any]:
    """Plans of the frontier; the fastest is the last."""
    frontier = find_frontier(task, dist.get_world_size())
    return [replace(point.plan, captured=None) for point in frontier.thinned(count)]


def worker(arguments: argparse.Namespace, effort: Effort) -> None:
    torch.set_num_threads(1)
    tensoropt_torch.init(timeout_s=1800.0)
    options = ProfileOptions(max_bytes=effort.max_bytes, budget_s=effort.hardware_s)
    profile, _ = tensoropt_torch.profile_hardware("cpu", options=options)
    record: dict[str, Any] = {
        "hardware": asdict(profile.machine),
        "runtime": asdict(profile.cluster.device.runtime),
        "collectives": held_back(profile, effort),
        "models": {},
    }
    for name in arguments.models:
        record["models"][name] = study(name, profile, effort)
        if dist.get_rank() == 0:
            Path(arguments.record).write_text(json.dumps(record))
            print(f"{dist.get_world_size()} ranks, {name}: {summary(record['models'][name])}")
    dist.destroy_process_group()


# --- The parent ----------------------------------------------------------------


def summary(row: dict[str, Any]) -> str:
    """The errors in a line."""
    ours, plain = row["ours"], row["volume_over_bandwidth"]
    rank = ours["rank_correlation"]
    return (
        f"step {ours['step_error']:.1%}, network {ours['network_error']:.1%}, "
        f"memory {ours['memory_error']:.1%}, Spearman {rank if not math.isnan(rank) else 0:.3f}, "
        f"noise {row['noise']:.1%}; volume/bandwidth: step {plain['step_error']:.1%}, network "
        f"{plain['network_error']:.1%}; pick {row['choice']['slower']:+.1%} from the fastest"
    )


def run_job(ranks: int, arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The record of one number of processes."""
    record = Path(folder) / f"{ranks}.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", __file__, "--record", str(record)]
    command += ["--models", *arguments.models] + (["--quick"] if arguments.quick else [])
    threads = {"OMP_NUM_THREADS": "1", "TENSOROPT_HOME": folder}
    subprocess.run(command, check=True, env={**os.environ, **threads})
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--record", help=argparse.SUPPRESS)  # of a rank
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else Effort()
    if arguments.record:
        worker(arguments, effort)
        return
    with tempfile.TemporaryDirectory() as folder:
        jobs = {str(ranks): run_job(ranks, arguments, folder) for ranks in arguments.ranks}
    result = {"machine": machine(), "effort": asdict(effort), "ranks": jobs}
    arguments.output.write_text(json.dumps(result, indent=1))
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
