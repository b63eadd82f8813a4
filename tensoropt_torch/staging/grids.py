"""Stages as they are set by hand: a grid of the number of stages, of micro-batches, and of what
devices of a stage do, with as many layers in each stage.

Devices of a stage are tensor parallel of some degree, on the innermost axes, and data parallel or
with sharded parameters on the others. What of the grid is fastest within the memory limit is a
baseline for plans in stages that are searched, on the same costs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tensoropt_torch import _C
from tensoropt_torch.batches import doubled, micro_batched
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.baselines import Baseline, Comparison, best_of
from tensoropt_torch.planner.points import BEST, pick_index
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.progress import progress
from tensoropt_torch.staging.options import StageOptions
from tensoropt_torch.staging.parts import FindPart, plan_stages

log = get_logger(__name__)

# By name the baseline that has their strategies without stages, and the role of the outer axes of a
# stage (``csrc/baselines/axis_roles.h``).
GRIDS = {"Megatron grid": ("Megatron", "data"), "ZeRO-3 grid": ("ZeRO-3", "shard")}
# The outermost number in the name of a parameter: the layer that it is in.
_LAYER = re.compile(r"^((?:[^.]+\.)*?\d+)\.")


def with_grids(task: PlanningTask, found: Comparison) -> Comparison:
    """With grids of stages among the baselines, each with what it has without stages."""
    grids = []
    by_name = {one.name: one for one in found.baselines}
    for name, (alone, outer) in GRIDS.items():
        plans = grid(task, found.num_devices, outer, found.memory_limit)
        staged = [Baseline(name, ((p.memory_bytes, p.time_s),), lambda _, p=p: p) for p in plans]  # type: ignore[misc]
        grids.append(best_of([by_name[alone], *staged], name))
    others = [one for one in found.baselines if one.name != BEST]
    return replace(found, baselines=(*others, *grids, best_of([*others, *grids], BEST)))


def grid(task: PlanningTask, count: int, outer: str, limit: float) -> list[StagedPlan]:
    """For each number of stages and of micro-batches the plan whose parts have as many layers, each
    with the degree that is fastest within the limit; without those that do not fit, or cannot
    be."""
    numbers = [number for number in doubled(task.max_stages) if count % number == 0]
    micro = [captured.micro_batches for captured in task.in_micro_batches]
    found = []
    total = len(numbers) * len(micro)
    with progress(f"stages by hand: {outer}", total, ticking=True) as done:
        for stages in numbers:
            for micro_batches in micro:
                done(f"{stages} stages, {micro_batches} micro-batches", more=0)
                try:
                    find = ByRoles(task, outer, limit)
                    found.append(by_layers(task, count, stages, micro_batches, find))
                except TensorOptError as error:
                    log.info("not in %d stages by layers: %s", stages, error)
                done()
    return found


def by_layers(
    task: PlanningTask, count: int, stages: int, micro_batches: int, find: FindPart
) -> StagedPlan:
    """The plan of one cell of the grid.

    Raises:
        TensorOptError: it cannot be, or does not fit.
    """
    captured = micro_batched(task.captured, micro_batches, task.whole_inputs)
    cuts = layer_cuts(captured, stages)
    plan = plan_stages(task, StageOptions(cuts, micro_batches), count, find=find)
    return replace(plan, captured=task.captured)


def layer_cuts(captured: CapturedModel, stages: int) -> list[str]:
    """The layers that all stages but the first begin with, if each has as many, the first ones one
    more where they are not a multiple.

    Raises:
        TensorOptError: the model has fewer layers.
    """
    layers = list(layers_of(source.names[0] for source in captured.parameters))
    if len(layers) < stages:
        raise TensorOptError(
            f"the model has {len(layers)} layers (members of lists of modules), fewer than "
            f"{stages} stages; give fewer stages, or cuts by name"
        )
    size, more = divmod(len(layers), stages)
    return [layers[stage * size + min(stage, more)] for stage in range(1, stages)]


def layers_of(names: Sequence[str] | Iterator[str]) -> Iterator[str]:
    """The members of lists of modules, by the names of parameters, in their order."""
    found = dict.fromkeys(match[1] for name in names if (match := _LAYER.match(name)))
    lists = [layer.rpartition(".")[0] for layer in found]
    return (layer for layer, own in zip(found, lists, strict=True) if lists.count(own) > 1)


@dataclass(frozen=True)
class ByRoles:
    """Finds the fastest strategy of a part within a limit of memory, with these roles.

    Attributes:
        outer: the role of the axes that are not tensor parallel, ``data`` or ``shard``.
        tensor: the degree of tensor parallelism; None: any.
    """

    task: PlanningTask
    outer: str
    limit: float
    tensor: int | None = None

    def __call__(
        self, space: _C.SearchSpace, settings: Settings, captured: CapturedModel, held: float
    ) -> Plan:
        """See ``FindPart``."""
        best: Plan | None = None
        for roles in self._roles(settings):
            result = space.play(roles, self.task.search.options())
            points = tuple((memory, time_s) for memory, time_s in result.points)
            index = pick_index(points, self.limit - held)
            if index is not None and (best is None or points[index][1] < best.time_s):
                strategy = result.unroll(index)
                best = Plan.of(space, settings, captured, strategy, points)
        if best is None:
            degree = "any degree" if self.tensor is None else f"degree {self.tensor}"
            raise TensorOptError(
                f"no strategy of tensor parallelism of {degree} with '{self.outer}' fits"
            )
        return best

    def _roles(self, settings: Settings) -> Iterator[list[tuple[str, int]]]:
        """By mesh axis its role and no name of a dim, of all degrees that are asked for."""
        sizes = [size for size, _ in settings.mesh_axes]
        for inner in range(len(sizes) + 1):
            degree = math.prod(sizes[len(sizes) - inner :])
            if self.tensor in (None, degree):
                outer = [(self.outer, -1)] * (len(sizes) - inner)
                yield [*outer, *[("tensor", -1)] * inner]
