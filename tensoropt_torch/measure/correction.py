"""Costs corrected by the plans that were run before one was taken.

Few plans tell much here, since they are those that others are compared with: what their steps
took says how far predictions of their like are off.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensoropt_torch import _C
from tensoropt_torch.logs import get_logger
from tensoropt_torch.measure.fits import Scales, TimedPlan, one_scale_of_steps, scales_of_steps
from tensoropt_torch.measure.runs.race import PlanRun
from tensoropt_torch.measure.runs.spaces import Space, spaces_of
from tensoropt_torch.measure.scaling import scaled
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.units import format_seconds

log = get_logger(__name__)


@dataclass(frozen=True)
class Corrected:
    """A task whose times are those that plans took.

    Attributes:
        runs: of the plans that run the same programs under these costs, by
            ``Plan.strategy_hash``.
    """

    task: PlanningTask
    runs: Mapping[str, PlanRun]


def corrected(
    task: PlanningTask, num_devices: int, runs: Mapping[str, PlanRun], fastest: str
) -> Corrected:
    """By some plans of the task that were run, so that the ``fastest`` of them runs the same
    programs. Collective; equal on all ranks."""
    scales, same = from_first_rank(partial(_fitted, task, num_devices, runs, fastest))
    log.info(
        "of what was predicted, steps of %d plans took x %.3g for computing, x %.3g for the "
        "network, and %s more for each collective",
        len(runs),
        scales.compute,
        scales.network,
        format_seconds(scales.collective_s),
    )
    return Corrected(scaled(task, scales), {name: runs[name] for name in same})


def _fitted(
    task: PlanningTask, num_devices: int, runs: Mapping[str, PlanRun], fastest: str
) -> tuple[Scales, list[str]]:
    """The scales, and which runs are of programs that stay with them. Those that would lead the
    fastest on other ways are not taken; one factor for everything leads none."""
    before = _spaces(task, num_devices, runs.values())
    rows = [_timed(before[run.micro_batches], run) for run in runs.values()]
    programs = _programs(before, runs)
    fits = (
        scales_of_steps(rows),
        scales_of_steps(rows, with_seconds=False),
        one_scale_of_steps(rows),
    )
    for scales in fits:
        after = _programs(_spaces(scaled(task, scales), num_devices, runs.values()), runs)
        same = [name for name in runs if after[name] == programs[name]]
        if fastest in same:
            break
    return scales, same


def _spaces(task: PlanningTask, num_devices: int, runs: Collection[PlanRun]) -> dict[int, Space]:
    """By the number of micro-batches, those that the runs are of."""
    counts = {run.micro_batches for run in runs}
    return {s.captured.micro_batches: s for s in spaces_of(task, num_devices, counts)}


def _strategy_of(space: Space, run: PlanRun) -> _C.Strategy:
    """Of a run without stages."""
    assert run.choices is not None
    return run.choices.strategy(space.core)


def _timed(space: Space, run: PlanRun) -> TimedPlan:
    strategy = _strategy_of(space, run)
    network_s, collectives = space.network(strategy)
    step_s = space.core.compute_time(strategy) + network_s
    return TimedPlan(step_s, run.step_s, network_s, run.network_s, collectives)


def _programs(spaces: Mapping[int, Space], runs: Mapping[str, PlanRun]) -> dict[str, list[Any]]:
    """The ways between layouts, which costs of collectives decide on: of all edges, by run; on
    the first rank, since all ranks go the same ways."""
    return {name: _programs_of(spaces[run.micro_batches], run) for name, run in runs.items()}


def _programs_of(space: Space, run: PlanRun) -> list[Any]:
    core = space.core
    program = _C.RankProgram(core, _strategy_of(space, run), 0)
    reshards = [program.reshard(_C.SpaceEdgeId(edge)) for edge in range(len(core.edges()))]
    ways = [way for reshard in reshards for way in (reshard.forward, reshard.backward)]
    return [(way.steps, way.groups) for way in ways]
