"""Planning with the costs of the running job: its hardware profile where there is
one, else what some seconds of measuring give; and measured operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from tensoropt_torch import _C
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.hardware import check_fits
from tensoropt_torch.measure.kept.hardware_profile import HardwareProfile
from tensoropt_torch.measure.kept.operator_times import (
    OpTime,
    keep_operators,
    known_operators,
    records,
)
from tensoropt_torch.measure.machine.axis_sets import affordable
from tensoropt_torch.measure.machine.key import key_of_job
from tensoropt_torch.measure.options import OPERATOR_SHARE, PROFILE_SHARE, MeasureOptions
from tensoropt_torch.measure.profiling import find_profile
from tensoropt_torch.measure.quick_profile import quick_profile
from tensoropt_torch.measure.runs.operators import OperatorProfiler, Pick, picks_of
from tensoropt_torch.planner.points import knee_index
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.runtime.agreement import from_first_rank, on_all_ranks
from tensoropt_torch.runtime.groups import AxisGroups
from tensoropt_torch.space.search_space import make_space, varied_strategy

log = get_logger(__name__)


def profiled_task(
    task: PlanningTask,
    count: int,
    device: torch.device,
    options: MeasureOptions,
    given: HardwareProfile | None = None,
) -> PlanningTask:
    """The task with the device and the collectives of the running process group, which has
    ``count`` processes. Collective, and equal on all ranks.

    ``given`` is the hardware profile to use, by default one of the user's cache.

    Raises:
        TensorOptError: on every rank, if the profile is damaged or was measured on
            something else.
    """
    mesh = task.settings(count).mesh_axes
    sizes = [size for size, _ in mesh]
    if given is not None:
        key = key_of_job(device, sizes)
        on_all_ranks(lambda: check_fits(given, key, given.cluster.name))
    profile = given or find_profile(mesh, device)
    if profile is None:
        budget_s = PROFILE_SHARE * options.budget_s
        limits = (options.max_bytes, budget_s)
        profile = quick_profile(task.cluster, mesh, device, *limits, fresh=options.fresh)
    log.info("costs of %r", profile)
    return with_profile(task, profile)


def with_profile(task: PlanningTask, profile: HardwareProfile) -> PlanningTask:
    """The task with the measured figures of a profile; memory, network, prices and
    power stay as described."""
    found = profile.cluster.device
    measured = replace(
        task.cluster.device,
        flops_per_s=found.flops_per_s,
        memory_bandwidth_bytes_per_s=found.memory_bandwidth_bytes_per_s,
        launch_overhead_s=found.launch_overhead_s,
        host_launch_s=found.host_launch_s,
        efficiency=found.efficiency,
        runtime=found.runtime,
        source=found.source,
    )
    cluster: Cluster = replace(task.cluster, device=measured)
    return replace(task, cluster=cluster, measured=profile.curves, measured_on=profile.num_devices)


@torch.enable_grad()  # operators are measured with their backward, whatever is planned
def with_operators(
    task: PlanningTask, count: int, device: torch.device, options: MeasureOptions
) -> PlanningTask:
    """The task with measured operators: those that the user's operator profile has, and
    those that the likely strategies use, in each number of micro-batches. Collective, and
    equal on all ranks."""
    if not options.operators:
        return task
    sizes = [size for size, _ in task.settings(count).mesh_axes]
    key = key_of_job(device, sizes)
    known = from_first_rank(lambda: {} if options.fresh else known_operators(key))
    groups = AxisGroups(sizes, device.type)
    left_s = OPERATOR_SHARE * options.budget_s
    for number in range(options.rounds):
        families: set[str] = set()
        graphs = list(task.graphs(count))
        for index, (captured, settings) in enumerate(graphs):
            space = make_space(captured, settings)
            profiler = OperatorProfiler(captured, space, device, groups.name)
            picks, own_families = from_first_rank(partial(_likely, space, task, options))
            families.update(own_families)
            missing = [pick for pick in picks if pick.key not in known]
            missing = _with_groups(profiler, missing, groups)
            budget_s = left_s / ((options.rounds - number) * len(graphs) - index)
            if missing:
                samples = _measured(profiler, missing, budget_s)
                known |= {sample.key: sample for sample in samples}
                from_first_rank(partial(keep_operators, key, samples))
            left_s -= budget_s
        task = replace(task, operators=records(known.values(), families), measured_on=count)
    groups.close()
    return task


def _measured(profiler: OperatorProfiler, picks: Sequence[Pick], budget_s: float) -> list[OpTime]:
    """What the budget allows. Collective."""
    with progress("measuring operators", len(picks), at_most_s=budget_s) as step:
        result = profiler.measure(picks, budget_s, step)
    for call, reason in result.failed:
        log.debug("could not run %s: %s", call, reason)
    return result.samples


def _with_groups(
    profiler: OperatorProfiler, picks: Sequence[Pick], groups: AxisGroups
) -> list[Pick]:
    """The picks whose process groups can be made, which they are then. Collective."""
    needed = {pick: profiler.axis_sets(pick) for pick in picks}
    wanted = {axes for sets in needed.values() for axes in sets}
    found = affordable(groups.sizes, wanted, groups.created)
    found.warn("operators that run collectives")
    groups.create(found.chosen)
    return [pick for pick in picks if needed[pick] <= set(found.chosen)]


def _likely(
    space: _C.SearchSpace, task: PlanningTask, options: MeasureOptions
) -> tuple[list[Pick], list[str]]:
    """The calls of the ends and the turning point of the frontier and of random
    strategies, and the families of operators that the model has."""
    result = task.search.run(space)
    points = result.points
    chosen = sorted({0, knee_index(points), len(points) - 1})
    strategies = [result.unroll(index) for index in chosen]
    strategies += [varied_strategy(space, seed) for seed in range(options.random_strategies)]
    families = {row.family for s in strategies for row in space.estimates(s)}
    return picks_of(space, strategies), sorted(families)
