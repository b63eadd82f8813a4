"""Makes what one rank has of a model in stages, and what it runs for calls of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn

from tensoropt_torch.batches import batch_rows
from tensoropt_torch.emit.boxed_step import boxed_step
from tensoropt_torch.emit.compilation import compiled
from tensoropt_torch.emit.compiler import CompileOptions
from tensoropt_torch.emit.quick_calls import quick_forward
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, ModelStructure
from tensoropt_torch.frontend.python_calls import remember_hooks
from tensoropt_torch.module.cut_constants import cut_constants
from tensoropt_torch.module.stage_assembly import (
    chunk_of,
    output_dims_of,
    stage_part,
)
from tensoropt_torch.module.stage_part import StageChunk, StagePart, Tied
from tensoropt_torch.module.stage_weights import StageWeightLoader
from tensoropt_torch.module.stand_ins import stand_ins
from tensoropt_torch.module.variant import variant_of
from tensoropt_torch.parameters.parameter_hooks import carry_hooks_over
from tensoropt_torch.plan import StagedPlan, StagePlan
from tensoropt_torch.program.stage_schedules import forward_only, schedules_of
from tensoropt_torch.runtime.agreement import CallAgreement, gather, on_all_ranks
from tensoropt_torch.runtime.stage_groups import StageGroups, note_place
from tensoropt_torch.space.rows import OutputRows, rows_of_outputs
from tensoropt_torch.space.search_space import unpriced_space
from tensoropt_torch.stages import StageGraph
from tensoropt_torch.stages.cut import tied_parameters
from tensoropt_torch.steps.clipping import mark_copy
from tensoropt_torch.values.weights import WeightSource, of_first_rank


class StageMaker:
    """Makes what one rank has of the model and runs.

    Args:
        compiler: compiles what a part computes; None: nothing does.
        own_groups: process groups are of nobody else, so that ranks can leave them.

    Attributes:
        groups: of the job.
        agreement: of the ranks on what they call.
        structure: the model without values.
        root: what stands for the model, with what this stage has of it, once it is ``load``ed.
        owned: by part, the first names of the parameters and buffers that its stage has.
    """

    def __init__(
        self,
        model: nn.Module,
        captured: CapturedModel,
        plan: StagedPlan,
        device: torch.device,
        compiler: CompileOptions | None = None,
        *,
        own_groups: bool = False,
    ) -> None:
        self._model = model
        self._compiler = compiler
        self._plan = plan
        self._device = device
        self._captured, self._graphs = plan.cut(captured)
        sizes = [size for size, _ in plan.parts[0].plan.settings.mesh_axes]
        self.groups = StageGroups(plan.stages, sizes, device, of_their_own=own_groups)
        self.agreement = CallAgreement(self.groups.control())
        self.structure = ModelStructure(
            model, captured.form, captured.blocks, captured.attributes.fills
        )
        self._numbers = range(self.groups.stage, len(self._graphs), plan.stages)
        self._parts = on_all_ranks(lambda: self._rank_parts(plan, self._graphs))
        self._names = {s.names[0]: s.names for s in self._captured.parameters}
        self._buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
        self.owned = [self._owned_by(number % plan.stages) for number in range(len(self._graphs))]
        self._own = self._names.keys() & self.owned[self.groups.stage]
        self._groups_of_stages: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._shared = self._shared_parameters()
        self._constants: dict[str, torch.Tensor] = {}
        self.root: nn.Module = nn.Module()
        self._parameters: dict[str, nn.Parameter] = {}  # of the stage, by first name

    def _rank_parts(self, plan: StagedPlan, graphs: Sequence[StageGraph]) -> list[RankPart]:
        return [self._rank_part(plan.parts[n], graphs[n].captured) for n in self._numbers]

    def _rank_part(self, own: StagePlan, captured: CapturedModel) -> RankPart:
        own.plan.check_model(captured)
        return RankPart(own.plan, captured, self.groups.rank, dict(own.storage) or None)

    def _owned_by(self, stage: int) -> frozenset[str]:
        """What a stage uses; the first has the parameters that none does."""
        own = {
            source.names[0]
            for graph in self._graphs[stage :: self._plan.stages]
            for source in graph.captured.sources
            if source.kind == "parameter" or source.names[0] in self._buffers
        }
        used = {name for graph in self._graphs for name in graph.parameters}
        return frozenset(own | (self._names.keys() - used if stage == 0 else set()))

    @property
    def foreign(self) -> set[str]:
        """The names of parameters and buffers that other stages have, and this one does not."""
        own, every = self.owned[self.groups.stage], frozenset[str]().union(*self.owned)
        names = {source.names[0]: source.names for source in self._captured.sources}
        return {name for first in every - own for name in names.get(first, (first,))}

    @cached_property
    def storage(self) -> dict[str, str]:
        """The layouts of the parameters and buffers of all stages, by name. Collective at the
        first time."""
        found: dict[str, str] = {}
        for parts in gather([part.storage for part in self._parts]):
            for own in parts:
                found |= own
        return {name: layout for name, layout in found.items() if self._is_kept(name)}

    def _is_kept(self, name: str) -> bool:
        return name in self._names or name in self._buffers

    @property
    def most_rows(self) -> int:
        """Of a micro-batch of the plan."""
        return batch_rows(self._captured, self._plan.shares.whole) or 1

    def load(self, weights: WeightSource) -> None:
        """Gives this rank its part of the parameters and buffers. Collective."""
        placements = {
            source.names[0]: part.placements(source)
            for part in self._parts
            for source in part.captured.parameters
        }
        loader = StageWeightLoader(
            self._model, placements, self._names, self.groups.mesh, self._device, self._own
        )
        values = loader.load(weights, self._captured.constants)
        self._constants = dict(values.constants)
        for part in self._parts:
            own = {n: self._constants[n] for n in part.captured.constants}
            self._constants |= cut_constants(part, own, self.groups.mesh)
        kept = (self._buffers & self._constants.keys()) - self.foreign
        named = {n: values.parameters[first] for first in self._own for n in self._names[first]}
        root = stand_ins(
            self.structure.module, named, {n: self._constants[n] for n in kept}, self._model
        )
        on_all_ranks(lambda: remember_hooks(self._model, root))
        on_all_ranks(lambda: carry_hooks_over(self._model, root, named))
        self.root = root
        self._parameters = {n: values.parameters[n] for n in self._names if n in self._own}
        numbers = {n: number for number, (n, _) in enumerate(self._model.named_parameters())}
        for name, parameter in self._parameters.items():
            note_place(parameter, numbers[name], self.groups)
        for name, (stages, _) in self._shared.items():
            if name in self._parameters and self.groups.stage in stages[1:]:
                mark_copy(self._parameters[name])

    def _shared_parameters(self) -> dict[str, tuple[tuple[int, ...], dist.ProcessGroup | None]]:
        """The parameters that several stages have, or several parts of one, in one order on all
        ranks: the stages, and this rank's group of them. Collective."""
        found = {}
        for name, parts in sorted(tied_parameters(self._graphs).items()):
            stages = tuple(sorted({part % self._plan.stages for part in parts}))
            if stages not in self._groups_of_stages:
                several = len(stages) > 1
                group = self.groups.of_stages(stages) if several else None
                self._groups_of_stages[stages] = group
            found[name] = stages, self._groups_of_stages[stages]
        return found

    def base(self) -> StagePart:
        """What the rank runs for calls like the example of the plan. Collective."""
        tables = {n: t for n, t in self._constants.items() if n not in self._buffers}
        return self._part(self._plan, self._captured, self._graphs, self._parts, tables)

    def part(self, plan: StagedPlan, captured: CapturedModel) -> StagePart:
        """What it runs for other calls, which ``captured`` is the graph of. Collective.

        Raises:
            TensorOptError: on every rank; a stage would take what it does not have.
        """
        captured, graphs = plan.cut(captured)
        on_all_ranks(lambda: self._check_owned(graphs))
        parts = on_all_ranks(lambda: self._rank_parts(plan, graphs))
        tables = {
            name: of_first_rank(name, constant, self._device)
            for name, constant in captured.constants.items()
            if name not in self._buffers
        }
        for part in parts:
            own = {name: tables[name] for name in part.captured.constants if name in tables}
            tables |= cut_constants(part, own, self.groups.mesh)
        return self._part(plan, captured, graphs, parts, tables)

    def _check_owned(self, graphs: Sequence[StageGraph]) -> None:
        every = frozenset[str]().union(*self.owned)
        for graph, own in zip(graphs, self.owned, strict=True):
            taken = {s.names[0] for s in graph.captured.sources if self._is_kept(s.names[0])}
            missing = sorted((taken & every) - own)
            if missing:
                raise TensorOptError(
                    f"this call of the model needs {', '.join(missing)} in a stage that does not "
                    "have them; plan without stages (find_strategy) for such calls"
                )

    def _part(
        self,
        plan: StagedPlan,
        captured: CapturedModel,
        graphs: Sequence[StageGraph],
        parts: Sequence[RankPart],
        tables: Mapping[str, torch.Tensor],
    ) -> StagePart:
        self.groups.create({axes for part in parts for axes in part.axis_sets})
        chunks = tuple(
            self._chunk(plan.parts[number], graphs[number], part, tables)
            for number, part in zip(self._numbers, parts, strict=True)
        )
        stages, makes_gradients = plan.stages, captured.context.gradients
        if makes_gradients:
            schedules = schedules_of(plan.schedule, stages, plan.micro_batches, plan.chunks)
        else:
            schedules = forward_only(stages, plan.chunks)
        own = {
            (number, place): dim
            for number, part in zip(self._numbers, parts, strict=True)
            for place, dim in enumerate(output_dims_of(part))
        }
        return stage_part(
            self.groups,
            captured,
            graphs,
            schedules[self.groups.stage],
            chunks,
            {n: p for n, p in self._parameters.items() if p.requires_grad},
            tuple(Tied(name, group) for name, (_, group) in self._shared.items()),
            {place: dim for found in gather(own) for place, dim in found.items()},
            self.agreement,
            uses_seeds=any(gather(any(chunk.variant.uses_seeds for chunk in chunks))),
            output_rows=self._output_rows(captured.batch or captured),
        )

    def _output_rows(self, batch: CapturedModel) -> tuple[OutputRows, ...]:
        shares = self._plan.shares
        if shares.mode == "replicated":
            return ()
        return rows_of_outputs(batch, unpriced_space(batch.lowering, ()), shares, 1)

    def _chunk(
        self,
        own: StagePlan,
        graph: StageGraph,
        part: RankPart,
        tables: Mapping[str, torch.Tensor],
    ) -> StageChunk:
        groups = self.groups
        writer = part.emitter(self._device, groups.name, first_draw=own.first_draw)
        emitted = writer.emit()
        if self._compiler is not None:
            emitted = compiled(emitted, self._compiler, groups.together)
        given = {n: tables[n] for n in part.captured.constants if n in tables}
        runs = part, emitted, self.root, given, writer.uses_seeds, groups.name
        variant = variant_of(*runs, whole_inputs=True)
        variant.forward = quick_forward(emitted)
        if self._compiler is None:
            numbers, registry = variant.own_numbers, variant.registry
            variant.boxed = boxed_step(emitted, numbers, part.captured, registry, called=True)
        return chunk_of(graph, part, variant)
