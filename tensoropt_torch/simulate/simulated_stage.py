"""The module of one rank of a stage without processes, devices or memory: it runs the actions of
its schedule as a real one does (``module/stage_step.py``), and what it is sent is memory alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn
from torch._C import _distributed_c10d as c10d

from tensoropt_torch.config import DeviceType
from tensoropt_torch.emit.boxed import BoxedStep
from tensoropt_torch.emit.boxed_step import is_recorded
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.module.stage_assembly import (
    chunk_of,
    output_dims_of,
    stage_part,
)
from tensoropt_torch.module.stage_part import StageChunk, StagePart, Tied
from tensoropt_torch.module.stage_step import StageStep
from tensoropt_torch.module.stand_ins import containers
from tensoropt_torch.module.variant import variant_of
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.program.stage_schedules import StageSchedule, alike_left_out, schedules_of
from tensoropt_torch.runtime.stage_groups import all_of
from tensoropt_torch.simulate.simulated_rank import (
    META,
    SimulatedRank,
    group_name,
    silent_group,
    silent_groups,
)
from tensoropt_torch.stages.cut import tied_parameters


class SimulatedStages:
    """The stages of a plan, each of them by its rank of one number.

    Args:
        captured: the model that the plan is of.
        rank: of each stage.
        planned: the type of device that the plan is for.
        skips: micro-batches that need what others need are left out.
    """

    def __init__(
        self,
        plan: StagedPlan,
        captured: CapturedModel,
        rank: int = 0,
        planned: DeviceType = "cpu",
        *,
        skips: bool = True,
    ) -> None:
        plan.check_model(captured)
        self.plan = plan
        self.rank = rank
        self.planned = planned
        self.captured, self.graphs = plan.cut(captured)
        schedules = schedules_of(plan.schedule, plan.stages, plan.micro_batches, plan.chunks)
        self.schedules = [alike_left_out(one) for one in schedules] if skips else schedules
        self._parts: dict[int, RankPart] = {}

    def part(self, number: int) -> RankPart:
        """What the rank has of a part."""
        if number not in self._parts:
            own, captured = self.plan.parts[number], self.graphs[number].captured
            own.plan.check_model(captured)
            self._parts[number] = RankPart(own.plan, captured, self.rank, dict(own.storage) or None)
        return self._parts[number]

    @cached_property
    def dims(self) -> dict[tuple[int, int], tuple[int | None, bool]]:
        """Of the outputs of the model."""
        return {
            (number, place): dim
            for number, graph in enumerate(self.graphs)
            if graph.outputs
            for place, dim in enumerate(output_dims_of(self.part(number)))
        }

    @cached_property
    def shared(self) -> dict[str, tuple[int, ...]]:
        """The stages of the parameters that several parts have, by name."""
        stages = self.plan.stages
        return {
            name: tuple(sorted({part % stages for part in parts}))
            for name, parts in sorted(tied_parameters(self.graphs).items())
        }

    def stage(self, number: int) -> SimulatedStage:
        """The one of this number."""
        return SimulatedStage(self, number)


class SimulatedStage:
    """The rank of one stage.

    Attributes:
        device: of its tensors, see ``SimulatedRank``.
        graphs: of its chunks.
    """

    def __init__(self, stages: SimulatedStages, number: int) -> None:
        self._stages = stages
        self._number = number
        self._numbers = range(number, len(stages.graphs), stages.plan.stages)
        ranks = [self._rank(part) for part in self._numbers]
        of_cpu = [rank.device for rank in ranks if rank.device.type == "cpu"]
        self._ranks = [rank.on(of_cpu[0]) if of_cpu else rank for rank in ranks]
        self.device = self._ranks[0].device
        # Of fake tensors nothing is recorded.
        on_meta = self.device == META
        self._is_recorded = [on_meta and is_recorded(rank.graph) for rank in self._ranks]
        self.graphs: tuple[fx.Graph, ...] = tuple(rank.graph for rank in self._ranks)

    def _rank(self, part: int) -> SimulatedRank:
        first_draw = self._stages.plan.parts[part].first_draw
        return SimulatedRank.of(self._stages.part(part), self._stages.planned, first_draw)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While this lasts, C++ operators find the groups of the rank."""
        sets = {axes for rank in self._ranks for axes in rank.part.axis_sets}
        with silent_groups(self._ranks[0].part.sizes, self._stages.rank, sorted(sets)):
            yield

    def module(self) -> nn.Module:
        """The rank's module, as the mode that is active makes it."""
        return _StageModule(self._root(), self._part)

    def rehearse(self, module: nn.Module, inputs: Sequence[object]) -> None:
        """Runs one micro-batch of each chunk, or as few as do all that micro-batches do, of which
        those of later steps call again what is recorded (``emit/boxed.py``)."""
        assert isinstance(module, _StageModule)
        plan = self._stages.plan
        edges = [e for c in module.part.chunks for e, _ in c.variant.hooked.borders.values()]
        is_last_another = plan.micro_batches > 1 and any(edge.summed for edge in edges)
        count = 1
        if is_last_another:
            count = 2 if plan.chunks == 1 else plan.stages
        few = schedules_of(plan.schedule, plan.stages, count, plan.chunks)[self._number]
        made = StageStep(replace(module.part, schedule=few), inputs, 0).run()
        ends = [one for one in made if isinstance(one, torch.Tensor) and one.requires_grad]
        torch.autograd.backward(ends[:1], [torch.ones_like(end) for end in ends[:1]])
        module.zero_grad()

    def inputs(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """Arguments of the module: those of the whole batch, as every rank has them."""
        captured = self._stages.captured
        return tuple(map(self._input, (captured.batch or captured).inputs)), {}

    def _input(self, source: Any) -> object:
        value = source.placeholder.meta["val"]
        return self._whole(value) if source.kind == "input" else value

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=self.device)

    def _root(self) -> nn.Module:
        captured = self._stages.captured
        constants = {name: self._whole(value) for name, value in captured.constants.items()}
        parameters: dict[str, nn.Parameter] = {}
        for rank in self._ranks:
            constants |= rank.cut_constants()
            for source in rank.part.captured.parameters:
                if source.names[0] not in parameters:
                    parameters |= dict.fromkeys(source.names, rank.parameter(source))
        if self._number == 0:
            used = {name for graph in self._stages.graphs for name in graph.parameters}
            for source in captured.parameters:
                if source.names[0] not in used:
                    parameters |= dict.fromkeys(source.names, self._ranks[0].unused(source))
        return containers(parameters, constants)

    def _part(self, root: nn.Module) -> StagePart:
        stages, plan = self._stages, self._stages.plan
        chunks = tuple(
            self._chunk(root, *one)
            for one in zip(self._numbers, self._ranks, self._is_recorded, strict=True)
        )
        named = dict(root.named_parameters(remove_duplicate=False))
        firsts = [source.names[0] for source in stages.captured.parameters]
        groups: Any = _SilentGroups(
            self._number, plan.stages, stages.rank, plan.devices_of_stage, self.device
        )
        agreement: Any = _Agreed()
        return stage_part(
            groups,
            stages.captured,
            stages.graphs,
            self._schedule,
            chunks,
            {n: named[n] for n in firsts if n in named and named[n].requires_grad},
            tuple(Tied(name, _tie(of)) for name, of in stages.shared.items()),
            stages.dims,
            agreement,
            uses_seeds=False,
        )

    @property
    def _schedule(self) -> StageSchedule:
        return self._stages.schedules[self._number]

    def _chunk(
        self, root: nn.Module, number: int, rank: SimulatedRank, is_recorded: bool
    ) -> StageChunk:
        graph = fx.GraphModule(nn.Module(), rank.graph)
        variant = variant_of(rank.part, graph, root, {}, False, group_name, whole_inputs=True)
        if is_recorded:
            variant.boxed = BoxedStep(graph, variant.own_numbers, variant.registry)
        return chunk_of(self._stages.graphs[number], rank.part, variant)


class _StageModule(nn.Module):
    """Runs the step of a stage."""

    def __init__(self, root: nn.Module, part: Any) -> None:
        super().__init__()
        self.root = root
        self.part: StagePart = part(root)

    def forward(self, *inputs: object) -> list[Any]:
        """The outputs of the model, of inputs of the whole batch."""
        return StageStep(self.part, inputs, 0).run()


class _SilentGroups:
    """What a step asks of ``StageGroups``; nothing is communicated."""

    def __init__(
        self, stage: int, stages: int, rank: int, devices: int, device: torch.device
    ) -> None:
        self.stage, self.rank, self.device = stage, rank, device
        self.devices_of_stage = devices
        self.column = silent_group(stage, stages)
        self._own = silent_group(rank, devices)

    def between(self, gradients: bool, wraps: bool) -> c10d.ProcessGroup:
        """See ``StageGroups``."""
        return self.column

    def all_of_stage(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See ``StageGroups``."""
        return all_of(self._own, tensor)


class _Agreed:
    """What a step asks of ``CallAgreement``: there is nobody to disagree."""

    def begin(self, *numbers: int) -> _Agreed:
        """See ``CallAgreement``."""
        return self

    def is_reached(self) -> bool:
        """See ``CallAgreement``."""
        return True


def _tie(stages: tuple[int, ...]) -> c10d.ProcessGroup | None:
    return silent_group(0, len(stages)) if len(stages) > 1 else None
