"""The collectives of a training step under a plan: what moves, over which devices, how long
each takes by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tensoropt_torch import _C
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.space.search_space import collective_times
from tensoropt_torch.space.settings import Settings
from tensoropt_torch.step_code import Step, StepKind, steps_of
from tensoropt_torch.telling.description import Described, model_at_hand


@dataclass(frozen=True)
class Collectives:
    """Collectives of one kind that do alike.

    Attributes:
        kind: ``all_gather``, ``reduce_scatter``, ``all_reduce`` or ``all_to_all``.
        moved: ``parameters`` (or copies of them in the dtype of a product), ``inputs`` or
            ``activations``, ``gradients of`` them, or them ``again in backward``, where the copy
            before the reshard is what is kept.
        group_size: how many devices take part in one.
        levels: names of the cluster's levels that they cross, outermost first.
        count: in a step of one device.
        num_bytes: of the larger side on one device, the output of a gather and else the
            input; of all together.
        time_s: of all, each by itself. A step waits for less where reshards overlap with
            computing or share collectives.
    """

    kind: str
    moved: str
    group_size: int
    levels: tuple[str, ...]
    count: int
    num_bytes: float
    time_s: float

    @property
    def received_bytes(self) -> float:
        """What one device receives of the others in all of them."""
        ways = 2 if self.kind == "all_reduce" else 1  # a reduce-scatter and an all-gather
        return ways * self.num_bytes * (self.group_size - 1) / self.group_size

    @property
    def name(self) -> str:
        """E.g. ``all-gathers of parameters``."""
        return f"{self.kind.replace('_', '-')}s of {self.moved}"


@dataclass(frozen=True)
class _Program:
    """The steps of a reshard of a tensor with ``num_bytes`` on one device before it, which a
    training step runs ``times`` times."""

    edge: int
    moved: str
    code: _C.EncodedProgram
    num_bytes: float
    times: int


def collectives_of(space: _C.SearchSpace, plan: Described) -> tuple[Collectives, ...]:
    """Those of all reshards, alike ones together; by time, the longest first. Collectives
    inside of operators are not among them."""
    model = _Model(plan.settings)
    found: dict[tuple[str, str, int], Collectives] = {}
    for program in _programs(space, plan):
        for one, axes in model.collectives(program):
            key = (one.kind, one.moved, axes)
            before = found.get(key, replace(one, count=0, num_bytes=0.0, time_s=0.0))
            found[key] = replace(
                before,
                count=before.count + program.times,
                num_bytes=before.num_bytes + program.times * one.num_bytes,
                time_s=before.time_s + program.times * one.time_s,
            )
    return tuple(sorted(found.values(), key=lambda one: -one.time_s))


def waited_for(space: _C.SearchSpace, plan: Described) -> dict[int, list[float]]:
    """Seconds of the collectives of each reshard of inputs and activations of a step, by edge:
    each way, and again in backward, where there are some."""
    model = _Model(plan.settings)
    found: dict[int, list[float]] = {}
    for program in _programs(space, plan):
        seconds = sum(one.time_s for one, _ in model.collectives(program))
        if seconds and "parameters" not in program.moved:
            found.setdefault(program.edge, []).append(program.times * seconds)
    return found


class _Model:
    """Axes, levels and times of collectives on the mesh of a plan."""

    def __init__(self, settings: Settings) -> None:
        cluster = parse_cluster(settings.cluster, "settings")
        self._axes = settings.mesh_axes
        self._levels = [level.name for level in cluster.levels]
        self._times = collective_times(settings)

    def collectives(self, program: _Program) -> Iterator[tuple[Collectives, int]]:
        """The collectives of a program, each with its axis set."""
        num_bytes = program.num_bytes
        for step in steps_of(program.code.steps, program.code.groups):
            after = num_bytes * _growth(step)
            if step.group is not None:
                axes, moved, name = step.group, max(num_bytes, after), step.kind.name
                time_s = self._times.time_s(_C.Collective.__members__[name], axes, moved)
                alike = program.moved, step.size, self._crossed(axes)
                yield Collectives(name.lower(), *alike, 1, moved, time_s), axes
            num_bytes = after

    def _crossed(self, axes: int) -> tuple[str, ...]:
        crossed = {level for i, (_, level) in enumerate(self._axes) if axes >> i & 1}
        return tuple(self._levels[level] for level in sorted(crossed))


def _growth(step: Step[int]) -> float:
    """What a step makes of the bytes on one device."""
    if step.kind == StepKind.ALL_GATHER:
        return step.size
    return 1 / step.size if step.kind in (StepKind.REDUCE_SCATTER, StepKind.SLICE) else 1


def _programs(space: _C.SearchSpace, plan: Described) -> Iterator[_Program]:
    """The programs of all edges, forward and backward."""
    strategy = plan.choices.strategy(space)
    rank = _C.RankProgram(space, strategy, 0)
    sizes = [size for size, _ in plan.settings.mesh_axes]
    kinds = _kinds_of_values(plan)
    each = plan.settings.micro_batches
    for index, edge in enumerate(space.edges_of(strategy)):
        reshard = rank.reshard(_C.SpaceEdgeId(index))
        what = kinds.get(edge.value, "activations")
        whole = reshard.value_bytes * num_shards(edge.layout_to, sizes)
        before = whole / num_shards(edge.layout_from, sizes)
        yield _Program(index, what, reshard.forward, before, 1 if reshard.held else each)
        if reshard.saved == _C.Saved.REMADE:
            yield _Program(index, f"{what} again in backward", reshard.forward, before, each)
        ratio = _item_size(reshard.reduce_dtype) / _item_size(reshard.dtype)
        gradient = whole * ratio / num_shards(edge.gradient_from, sizes)
        times = 1 if reshard.summed else each
        yield _Program(index, f"gradients of {what}", reshard.backward, gradient, times)


# Calls whose result is what they are given in another dtype or shape: autocast computes with
# such copies of parameters.
_COPIES = frozenset(
    {
        torch.ops.aten.to.dtype,
        torch.ops.aten._to_copy.default,
        torch.ops.aten.t.default,
        torch.ops.aten.transpose.int,
        torch.ops.aten.permute.default,
        torch.ops.aten.view.default,
        torch.ops.aten.reshape.default,
    }
)


def _kinds_of_values(plan: Described) -> dict[int, str]:
    """Which values are parameters, copies of these or inputs, by the number of the value."""
    captured = model_at_hand(plan)
    named = ((captured.parameters, "parameters"), (captured.inputs, "inputs"))
    values = captured.lowering.values
    kinds = {source.placeholder: what for sources, what in named for source in sources}
    for node in captured.graph_module.graph.nodes:
        if node.target in _COPIES and kinds.get(node.args[0]) == "parameters":
            kinds[node] = "parameters"
    return {value: what for node, what in kinds.items() for value in values.get(node, ())}


def num_shards(layout: str, sizes: Sequence[int]) -> int:
    """Into how many different parts a layout such as ``S0,R`` cuts a tensor on a mesh with
    axes of these sizes."""
    entries = layout.split(",") if sizes else []
    return math.prod(
        size for entry, size in zip(entries, sizes, strict=True) if entry.startswith("S")
    )


def _item_size(dtype: str) -> int:
    found: torch.dtype = getattr(torch, dtype)
    return found.itemsize
