"""How far predictions are from measurements, on processes of this machine.

    python benchmarks/estimation_error.py                # all, an hour or two on 2 cores
    python benchmarks/estimation_error.py --ranks 2 --models rnn    # one of its parts
    python benchmarks/estimation_error.py --passes 4 --fitted 10    # in half of the time
    python benchmarks/estimation_error.py --quick        # small, to see it work

For 2 and 4 Gloo processes: the hardware is profiled, then for an RNN, a WideResNet and
a Transformer random strategies (seeded, none left out) are predicted and run, and
points of the frontier as well. Beside it what volume over bandwidth would predict, and
collectives at sizes between those that were profiled. Run it on a calm machine.

Every model is written to the output file when it is done, with what it was made with;
what else the file holds stays. With TENSOROPT_HOME set, a later call finds the hardware
profile and the operators that were measured there (a small run leaves them alone).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
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
from benchmarks.models.small import STUDY
from benchmarks.ranks import WORKER, run_ranks
from benchmarks.training import CPU, Trainer
from tensoropt_torch import _C
from tensoropt_torch.config.cluster import COLLECTIVES, Runtime
from tensoropt_torch.frontend import capture
from tensoropt_torch.measure import (
    MeasureOptions,
    ProfileOptions,
    ValidationOptions,
    rescaled,
    scaled,
    scales_of,
    validate,
)
from tensoropt_torch.measure.job_costs import OPERATOR_SHARE, with_operators, with_profile
from tensoropt_torch.measure.kept.files import write_atomically
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.machine.collective_times import MIN_BYTES, measure_sizes
from tensoropt_torch.measure.runs.training import (
    Reference,
    RepeatedTimes,
    StepTimes,
    run_in_passes,
)
from tensoropt_torch.measure.runs.validation import (
    DISTURBED_SPREAD,
    Validation,
    mean_error,
    spearman,
)
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.runtime.meshes import all_axis_sets
from tensoropt_torch.space.search_space import (
    core_cluster,
    make_space,
    measured_table,
    varied_strategy,
)

RESULTS = Path(__file__).parent / "results" / "estimation_error.json"
FIRST_SEED = 1000  # others than those whose operators are measured
COLLECTIVES_ENTRY = "collectives"


@dataclass(frozen=True)
class Effort:
    """How much is run."""

    strategies: int = 20
    fitted: int = 20
    frontier_points: int = 8
    steps: int = 12
    passes: int = 6
    hardware_s: float = 90.0
    operators_s: float = 150.0
    max_bytes: int = 16 << 20
    held_back_s: float = 60.0


QUICK = Effort(
    strategies=3,
    fitted=2,
    frontier_points=2,
    steps=3,
    hardware_s=15.0,
    operators_s=20.0,
    max_bytes=1 << 20,
    held_back_s=5.0,
)


# --- The output file -----------------------------------------------------------


def read_results(path: Path) -> dict[str, Any]:
    """What the output file holds: {"ranks": {number: {"collectives": an entry, "models":
    {name: an entry}}}}, where each entry says what it was ``made_with``."""
    if not path.exists():
        return {"ranks": {}}
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        known = all(
            "made_with" in entry for job in found["ranks"].values() for entry in entries(job)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise SystemExit(f"{path} holds no results of this benchmark; give another --output")
    return found


def entries(job: dict[str, Any]) -> list[dict[str, Any]]:
    """All that was measured with one number of processes."""
    collectives = [job[COLLECTIVES_ENTRY]] if COLLECTIVES_ENTRY in job else []
    return [*collectives, *job["models"].values()]


def add_result(path: Path, ranks: int, name: str, entry: dict[str, Any]) -> None:
    """Writes one entry, of a model or of the ``collectives``; others stay."""
    found = read_results(path)
    job = found["ranks"].setdefault(str(ranks), {"models": {}})
    (job if name == COLLECTIVES_ENTRY else job["models"])[name] = entry
    write_atomically(path, json.dumps(found, indent=1) + "\n")


def made_with(profile: HardwareProfile, effort: Effort) -> dict[str, Any]:
    """What an entry depends on besides the code, as it is read back from the file."""
    record = {
        "machine": machine(),
        "hardware": asdict(profile.machine),
        "runtime": asdict(profile.cluster.device.runtime),
        "profile": hashlib.sha256(profile.to_json().encode()).hexdigest()[:16],
        "effort": asdict(effort),
    }
    result: dict[str, Any] = json.loads(json.dumps(record))
    return result


# --- On every rank -------------------------------------------------------------


def held_back(profile: HardwareProfile, effort: Effort) -> dict[str, float]:
    """Interpolated collectives against measured ones at sizes between the profile's,
    and two measurements of the profile's own sizes against each other."""
    sizes = [size for size, _ in profile.mesh_axes]
    mesh = _C.Mesh(list(profile.mesh_axes))
    analytic = _C.AnalyticCollectives(core_cluster(profile.cluster, profile.mesh_axes), mesh)
    model = _C.MeasuredCollectives(mesh, measured_table(profile.curves), analytic)
    groups = AxisGroups(sizes)
    axis_sets = all_axis_sets(sizes)
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


@dataclass(frozen=True)
class Case:
    """A model with the costs to be tested."""

    model: nn.Module
    args: tuple[torch.Tensor, ...]
    task: PlanningTask
    effort: Effort

    def space(self, task: PlanningTask | None = None) -> _C.SearchSpace:
        """By the costs of the task, or of another one of the same model."""
        task = task or self.task
        return make_space(task.captured, task.settings(dist.get_world_size()))

    def validated(self) -> tuple[Validation, Validation]:
        """Random strategies, run: those that scales come from, and others. All in the same
        passes, since the machine's speed changes from minute to minute."""
        effort = self.effort
        count = effort.fitted + effort.strategies
        options = ValidationOptions(
            count, FIRST_SEED, effort.steps, effort.passes, budget_s=None, fresh=True
        )
        rows = validate(self.model, self.task, (self.args, {}), CPU, options).rows
        return Validation(rows[: effort.fitted]), Validation(rows[effort.fitted :])

    def predicted(self, found: Validation, task: PlanningTask) -> Validation:
        """The same strategies with times by other costs."""
        own, other = self.space(), self.space(task)
        rows = []
        for row in found.rows:
            strategy = varied_strategy(own, row.seed)
            network_s = other.network_time(strategy)
            step_s = network_s + other.compute_time(strategy)
            rows.append(replace(row, step_s=step_s, network_s=network_s))
        return Validation(tuple(rows))


def study(name: str, profile: HardwareProfile, effort: Effort) -> dict[str, Any]:
    """One model on all ranks."""
    torch.manual_seed(0)
    model, args = STUDY[name].make()
    task = PlanningTask(capture(model, args), tensoropt_torch.load_cluster("cpu"))
    task = with_profile(task, profile)
    plain = plain_task(task, profile)
    case = Case(model, args, measured_operators(task, profile, effort), effort)
    fitted, others = case.validated()
    scales = scales_of(fitted.rows)
    in_steps = scaled(case.task, scales)
    ours = Validation(tuple(rescaled(row, scales) for row in others.rows)).to_record()
    measured_s = [row.measured_step_s for row in others.rows]
    chosen = choice(replace(case, task=in_steps), measured_s)
    return {
        "ours": ours,
        "with_frontier": with_frontier(ours["rows"], chosen["points"]),
        "without_scales": time_errors(others),
        "volume_over_bandwidth": time_errors(case.predicted(others, plain)),
        "operators_measured": len(case.task.operators),
        "scales": asdict(scales),
        "choice": chosen,
    }


def with_frontier(random: list[dict[str, Any]], frontier: list[dict[str, Any]]) -> dict[str, float]:
    """Of the step times of random strategies and points of the frontier together."""
    pairs = [(row["step_s"], row["measured_step_s"]) for row in [*random, *frontier]]
    predicted, measured = zip(*pairs, strict=True)
    return {
        "step_error": mean_error(pairs),
        "rank_correlation": spearman(predicted, measured),
        "slowest_over_fastest": max(measured) / min(measured),
    }


def measured_operators(
    task: PlanningTask, profile: HardwareProfile, effort: Effort
) -> PlanningTask:
    """The task with the operators that likely strategies use."""
    options = MeasureOptions(budget_s=effort.operators_s / OPERATOR_SHARE, random_strategies=8)
    return with_operators(task, profile.num_devices, CPU, options)


def time_errors(found: Validation) -> dict[str, Any]:
    """Those of its times, and what was predicted."""
    return {
        **found.time_figures(),
        "network_s": [row.network_s for row in found.rows],
        "step_s": [row.step_s for row in found.rows],
    }


def choice(case: Case, random_s: list[float]) -> dict[str, Any]:
    """Whether the strategy that ``mini_time`` picks is the fastest of all that were run."""
    frontier = from_first_rank(lambda: _points(case.task, case.effort.frontier_points))
    trainer = Trainer(case.model, case.args, case.task)

    def run(plan: Plan) -> StepTimes:
        return trainer.start(plan).times(case.effort.steps)

    runs = [partial(run, plan) for plan in frontier]
    times = run_in_passes(runs, case.effort.passes, reference=Reference(CPU))
    found = [RepeatedTimes.of(those) for those in times]
    trainer.close()
    rows = [
        {"step_s": plan.time_s, "measured_step_s": times.fastest.step_s, "spread": times.spread}
        for plan, times in zip(frontier, found, strict=True)
    ]
    picked = rows[-1]["measured_step_s"]
    fastest = min([row["measured_step_s"] for row in rows] + random_s)
    return {
        "points": rows,
        "picked_s": picked,
        "fastest_s": fastest,
        "slower": picked / fastest - 1,
    }


def _points(task: PlanningTask, count: int) -> list[Plan]:
    """Plans of the frontier; the fastest is the last."""
    frontier = find_frontier(task, dist.get_world_size())
    return [replace(point.plan, captured=None) for point in frontier.thinned(count)]


def worker(arguments: argparse.Namespace, effort: Effort) -> None:
    torch.set_num_threads(1)
    tensoropt_torch.init(timeout_s=1800.0)
    options = ProfileOptions(max_bytes=effort.max_bytes, budget_s=effort.hardware_s)
    profile, _ = tensoropt_torch.profile_hardware("cpu", options=options)
    ranks = dist.get_world_size()
    conditions = made_with(profile, effort)

    def keep(name: str, entry: dict[str, Any]) -> None:
        if dist.get_rank() == 0:
            add_result(arguments.output, ranks, name, {**entry, "made_with": conditions})

    job = from_first_rank(lambda: read_results(arguments.output)["ranks"].get(str(ranks), {}))
    if job.get(COLLECTIVES_ENTRY, {}).get("made_with") != conditions:
        keep(COLLECTIVES_ENTRY, held_back(profile, effort))
    for name in arguments.models:
        row = study(name, profile, effort)
        keep(name, row)
        if dist.get_rank() == 0:
            print(f"{ranks} ranks, {name}: {summary(row)}", flush=True)
    dist.destroy_process_group()


# --- The parent ----------------------------------------------------------------


def summary(row: dict[str, Any]) -> str:
    """The errors in some lines."""
    ours, plain, all_runs = row["ours"], row["volume_over_bandwidth"], row["with_frontier"]
    calm = ours["undisturbed"]
    return (
        f"{_time_errors(ours)}, memory {ours['memory_error']:.1%}, simulated "
        f"{ours['simulated_memory_error']:.1%}\n"
        f"  without the scales: {_time_errors(row['without_scales'])}\n"
        f"  runs of a strategy differ by {ours['spread']:.1%}; the {calm['strategies']} of "
        f"{len(ours['rows'])} that differ by less than {DISTURBED_SPREAD:.0%}: "
        f"{_time_errors(calm)}\n"
        f"  with the frontier's: step {all_runs['step_error']:.1%}, Spearman "
        f"{all_runs['rank_correlation']:.3f}\n"
        f"  volume/bandwidth: {_time_errors(plain)}\n"
        f"  pick {row['choice']['slower']:+.1%} from the fastest"
    )


def _time_errors(figures: dict[str, Any]) -> str:
    return (
        f"step {figures['step_error']:.1%}, network {figures['network_error']:.1%}, Spearman "
        f"{figures['rank_correlation']:.3f}"
    )


def effort_of(arguments: argparse.Namespace) -> Effort:
    """What is asked for."""
    given = {"passes": arguments.passes, "fitted": arguments.fitted}
    changed = {name: number for name, number in given.items() if number is not None}
    return replace(QUICK if arguments.quick else Effort(), **changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--models",
        nargs="*",
        choices=list(STUDY),
        default=list(STUDY),
        help="none of them: collectives only",
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--passes", type=int, help="runs of each strategy, by default 6")
    parser.add_argument("--fitted", type=int, help="strategies that scales are from: 20")
    parser.add_argument("--output", type=Path, help=f"by default {RESULTS}, none with --quick")
    parser.add_argument(WORKER, action="store_true", help=argparse.SUPPRESS)  # a rank
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments, effort_of(arguments))
        return
    with tempfile.TemporaryDirectory() as folder:
        default = Path(folder) / "quick.json" if arguments.quick else RESULTS
        output: Path = arguments.output or default
        read_results(output)  # an hour before it is written to
        own = None if arguments.quick else os.environ.get("TENSOROPT_HOME")
        os.environ["TENSOROPT_HOME"] = own or folder
        for_ranks = ["--output", str(output.resolve()), "--models", *arguments.models]
        for_ranks += ["--quick"] if arguments.quick else []
        effort = effort_of(arguments)
        for_ranks += ["--passes", str(effort.passes), "--fitted", str(effort.fitted)]
        for ranks in arguments.ranks:
            run_ranks(__file__, ranks, for_ranks)
        if output != Path(folder) / "quick.json":
            print(f"written to {output}")


if __name__ == "__main__":
    main()
