"""``parallelize`` for plans in stages: each rank gets the module of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.batches import micro_batched
from tensoropt_torch.calls.attribute_watch import AttributeWatch
from tensoropt_torch.calls.call_kind import (
    CallKind,
    CallReader,
    TensorKind,
    literal_kind,
)
from tensoropt_torch.calls.capture_check import CaptureCheck, ComparedBefore
from tensoropt_torch.calls.input_checks import InputComparison
from tensoropt_torch.collector import without_collections
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, ModelStructure, as_module
from tensoropt_torch.frontend.call_context import autocast_off, current_autocast
from tensoropt_torch.frontend.python_calls import check_hooks, remember_hooks, run_by
from tensoropt_torch.module.cut_constants import cut_constants
from tensoropt_torch.module.micro_batched import Gather
from tensoropt_torch.module.parallel_module import ParallelModule, programs_of
from tensoropt_torch.module.parallelize import seed_generator
from tensoropt_torch.module.programs import ModulePrograms
from tensoropt_torch.module.reached import Reach
from tensoropt_torch.module.stage_step import StageChunk, StagePart, StageStep, Tied
from tensoropt_torch.module.stage_weights import StageWeightLoader
from tensoropt_torch.module.stand_ins import stand_ins
from tensoropt_torch.module.step_hooks import watch_optimizers
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.parameters.parameter_hooks import carry_hooks_over
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.program.stage_schedules import schedules_of
from tensoropt_torch.runtime.agreement import (
    CallAgreement,
    agree_on_model,
    agree_or_raise,
    gather,
    on_all_ranks,
)
from tensoropt_torch.runtime.stage_groups import StageGroups
from tensoropt_torch.runtime.stage_norms import watch_norms_of_stages
from tensoropt_torch.space.rows import loss_node, rows_of_inputs
from tensoropt_torch.stages import cut_graph
from tensoropt_torch.stages.cut import tied_parameters
from tensoropt_torch.steps.clipping import mark_copy
from tensoropt_torch.values.weights import WeightSource

_NO_SYNC = (
    "a module in stages reduces gradients in every step: leave no_sync() out, and take more "
    "micro_batches for larger batches"
)


@without_collections()
def parallelize_stages(
    model: nn.Module | torch.export.ExportedProgram,
    captured: CapturedModel,
    plan: StagedPlan,
    device: torch.device,
    weights: WeightSource | None = None,
    *,
    check_capture: bool = True,
    compared: ComparedBefore | None = None,
) -> StagedModule:
    """The module that runs this rank's stage of ``plan``. Collective.

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of processes, the
            model, or the other ranks.
    """
    model = as_module(model)
    on_all_ranks(lambda: _check_world(plan))
    agree_on_model(captured)
    agree_or_raise("plan", plan.hash, "plan once on rank 0: find_stages gives all ranks the same")
    on_all_ranks(lambda: plan.check_model(captured))
    on_all_ranks(lambda: check_hooks(model, captured.hooks))
    maker = _Maker(model, captured, plan, device)
    root = maker.root(weights or WeightSource())
    part = maker.part(root)
    storage = ModuleStorage(root)
    attributes = AttributeWatch(root, maker.structure.module, model, captured.form.loss_fn)
    check = CaptureCheck.make(model, check_capture, compared)
    trained = maker.structure.trained
    calls = _StageCalls(captured, root, device, attributes, check, trained, maker.groups)
    programs = StagePrograms(plan, part, storage, calls, maker.uses_seeds, maker.base(part))
    module = StagedModule(plan, storage, programs, maker.foreign)
    watch_optimizers(model, module)
    watch_norms_of_stages()
    return module


def _check_world(plan: StagedPlan) -> None:
    world = dist.get_world_size()
    if world != plan.num_devices:
        raise TensorOptError(
            f"the plan is for {plan.stages} stages of {plan.devices_of_stage} devices, but {world} "
            f"processes run; start torchrun with {plan.num_devices} processes in all, or plan "
            f"again for {world}"
        )


class _Maker:
    """Makes what one rank has of the model and runs.

    Attributes:
        structure: the model without values.
        uses_seeds: whether a step of some stage draws random numbers.
    """

    def __init__(
        self, model: nn.Module, captured: CapturedModel, plan: StagedPlan, device: torch.device
    ) -> None:
        self._model = model
        self._plan = plan
        self._device = device
        self._captured = micro_batched(captured, plan.micro_batches)
        self._graphs = cut_graph(self._captured, plan.cuts)
        sizes = [size for size, _ in plan.parts[0].plan.settings.mesh_axes]
        self.groups = StageGroups(plan.stages, sizes, device)
        self.structure = ModelStructure(model, captured.form, captured.blocks)
        stage, stages = self.groups.stage, plan.stages
        self._numbers = range(stage, len(self._graphs), stages)
        self._parts = on_all_ranks(lambda: [self._rank_part(n) for n in self._numbers])
        self._names = {s.names[0]: s.names for s in self._captured.parameters}
        self._own = self._own_parameters(stage)
        self._copies: set[str] = set()  # of parameters that an earlier stage has as well
        self.uses_seeds = False
        self._constants: dict[str, torch.Tensor] = {}

    def _rank_part(self, number: int) -> RankPart:
        own, graph = self._plan.parts[number], self._graphs[number]
        own.plan.check_model(graph.captured)
        storage = dict(own.storage) or None
        return RankPart(own.plan, graph.captured, self.groups.rank, storage)

    def _own_parameters(self, stage: int) -> set[str]:
        """Those that a stage uses; the first has those that none does."""
        found = {name for number in self._numbers for name in self._graphs[number].parameters}
        used = {name for graph in self._graphs for name in graph.parameters}
        return found | (self._names.keys() - used if stage == 0 else set())

    @property
    def foreign(self) -> set[str]:
        """The names of parameters and buffers that other stages have, and this one does not."""
        every = {n for name in self._names.keys() - self._own for n in self._names[name]}
        return every | (self._buffers_used(of_others=True) - self._buffers_used())

    def _buffers_used(self, of_others: bool = False) -> set[str]:
        stages = self._plan.stages
        return {
            name
            for number, graph in enumerate(self._graphs)
            if (number % stages == self.groups.stage) != of_others
            for source in graph.captured.sources
            if source.kind == "constant"
            for name in source.names
        }

    def root(self, weights: WeightSource) -> nn.Module:
        """What stands for the model, with what this stage has of it."""
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
        buffers = {name for name, _ in self._model.named_buffers(remove_duplicate=False)}
        kept = (buffers & self._constants.keys()) - self.foreign
        named = {n: values.parameters[first] for first in self._own for n in self._names[first]}
        root = stand_ins(
            self.structure.module, named, {n: self._constants[n] for n in kept}, self._model
        )
        on_all_ranks(lambda: remember_hooks(self._model, root))
        on_all_ranks(lambda: carry_hooks_over(self._model, root, named))
        return root

    def part(self, root: nn.Module) -> StagePart:
        """What the rank runs."""
        self.groups.create({axes for part in self._parts for axes in part.axis_sets})
        pairs = zip(self._numbers, self._parts, strict=True)
        chunks = tuple(self._chunk(number, part, root) for number, part in pairs)
        self.uses_seeds = any(gather(any(chunk.variant.uses_seeds for chunk in chunks)))
        parameters = {
            chunk.variant.captured.sources[number].names[0]: parameter
            for chunk in chunks
            for number, parameter in chunk.variant.trained()
        }
        loss = loss_node(self._captured)
        assert loss is not None
        like_loss = torch.empty((), dtype=loss.meta["val"].dtype, device=self._device)
        tied = self._tied()
        for name in self._copies & parameters.keys():
            mark_copy(parameters[name])
        return StagePart(self.groups, chunks, parameters, tied, like_loss)

    def _chunk(self, number: int, part: RankPart, root: nn.Module) -> StageChunk:
        graph, settings = self._graphs[number], part.plan.settings
        first_draw = self._plan.parts[number].first_draw
        writer = part.emitter(self._device, self.groups.name, first_draw=first_draw)
        buffers = {name for name, _ in root.named_buffers(remove_duplicate=False)}
        tables = {n: self._constants[n] for n in part.captured.constants if n not in buffers}
        emitted = writer.emit()
        own = part.plan, part.captured, emitted, root, tables, writer.uses_seeds, part.views
        variant = Variant(*own, self._gathers(part))
        by_name = {source.names[0]: source for source in part.captured.inputs}
        received = tuple(part.local_shape(by_name[c.name]) for c in graph.received)
        rows = part.output_rows(settings)[len(graph.outputs) :]
        dims = [row.dim if settings.inputs == "sharded" else None for row in rows]
        sent = tuple(
            _share(crossing.shape, dim, settings.num_devices)
            for crossing, dim in zip(graph.sent, dims, strict=True)
        )
        is_shared = settings.inputs == "sharded" and settings.num_devices > 1
        alone = tuple(is_shared and dim is None for dim in dims)
        return StageChunk(graph, variant, received, sent, alone)

    def _gathers(self, part: RankPart) -> dict[int, Gather]:
        """Of sources of totals of which a rank has a part: no inputs, which it has whole."""
        inputs = {n for n, s in enumerate(part.captured.sources) if s.kind == "input"}
        return {
            number: Gather(steps, [self.groups.name(axes) for axes in sets])
            for number, (steps, sets) in part.gathers.items()
            if number not in inputs
        }

    def _tied(self) -> tuple[Tied, ...]:
        """In one order on all ranks. Collective."""
        loss = loss_node(self._captured)
        outputs = list(self._captured.graph_module.graph.output_node().args[0])  # type: ignore[arg-type]
        reach, number = Reach(self._captured), outputs.index(loss)
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        found = []
        for name, parts in sorted(tied_parameters(self._graphs).items()):
            stages = tuple(sorted({part % self._plan.stages for part in parts}))
            if stages not in groups:
                several = len(stages) > 1
                groups[stages] = self.groups.of_stages(stages) if several else None
            found.append(Tied(name, groups[stages], reach.is_reached(name, number)))
            if self.groups.stage in stages[1:]:
                self._copies.add(name)
        return tuple(found)

    def base(self, part: StagePart) -> Variant:
        """The first of what it runs."""
        return part.chunks[0].variant


def _share(shape: Sequence[int], dim: int | None, parts: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(shape)
    return (*shape[:dim], shape[dim] // parts, *shape[dim + 1 :])


class _StageCalls:
    """Sees to it that all ranks make the call that the plan is for."""

    def __init__(
        self,
        captured: CapturedModel,
        root: nn.Module,
        device: torch.device,
        attributes: AttributeWatch,
        check: CaptureCheck,
        trained: tuple[bool, ...],
        groups: StageGroups,
    ) -> None:
        modules, parameters = list(root.modules()), list(root.parameters())
        self._captured = captured
        self.out_spec = captured.out_spec
        self._names = [source.names[0] for source in captured.inputs]
        self._reader = CallReader(modules, parameters, device, captured.context, attributes)
        self._trained = trained
        self._attributes = attributes
        self._check = check
        self._comparison = InputComparison(deferred=self._reader.waits_for_values)
        self._agreement = CallAgreement(groups.control())
        modes = tuple(module.training for module in modules)
        own = tuple(parameter.requires_grad for parameter in parameters)
        inputs = tuple(_kind_of(source.placeholder, source.kind) for source in captured.inputs)
        self._kind = CallKind(modes, own, captured.in_spec, inputs, captured.context)

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any], reduces: bool) -> Sequence[Any]:
        """The inputs. Collective.

        Raises:
            TensorOptError: on every rank; it is another call than that of the plan.
        """
        call, error = None, ""
        try:
            call = self._reader.read(args, kwargs)
            error = self._error(call.kind, reduces)
        except TensorOptError as caught:
            error = str(caught)
        inputs = {} if call is None or error else dict(zip(self._names, call.values, strict=True))
        number = self._comparison.begin(inputs)
        if not self._agreement.begin(int(bool(error)), number).is_reached() or error:
            errors = self._agreement.exchange(error)
            for rank, text in enumerate(errors):
                if text:
                    raise TensorOptError(f"rank {rank}: {text}")
            self._comparison.check(self._agreement.exchange(self._comparison.take()))
        assert call is not None
        whole = [None] * len(call.values)
        kind = replace(call.kind, trained=self._trained)
        call = replace(call, kind=kind)
        self._check.run(self._captured, call, whole, self._attributes.modules)
        return call.values

    def _error(self, kind: CallKind, reduces: bool) -> str:
        """Why the call is not that of the plan."""
        if not reduces:
            return _NO_SYNC
        if kind == self._kind:
            return ""
        return (
            f"the module was called with {kind.describe(self._names)}{kind.frozen}; a module in "
            f"stages runs calls like its example alone, {self._kind.describe(self._names)}"
            f"{self._kind.frozen}: train with batches of this shape (drop_last=True) under the "
            "autocast that it was planned under, and evaluate with a plan without stages "
            "(find_strategy)"
        )


def _kind_of(placeholder: Any, kind: str) -> TensorKind | tuple[str, str]:
    value = placeholder.meta["val"]
    if kind == "literal":
        return literal_kind(value, lambda: "of the example")
    return TensorKind(tuple(value.shape), value.dtype, value.requires_grad)


class StagePrograms(ModulePrograms):
    """Runs the steps of a stage."""

    def __init__(
        self,
        plan: StagedPlan,
        part: StagePart,
        storage: ModuleStorage,
        calls: _StageCalls,
        uses_seeds: bool,
        base: Variant,
    ) -> None:
        super().__init__(base, storage, seed_generator(plan.fingerprint))
        self._uses_seeds = uses_seeds
        self._part = part
        self.groups = part.groups
        self._calls = calls
        schedules = schedules_of(plan.schedule, plan.stages, plan.micro_batches, plan.chunks)
        self.schedule = schedules[part.groups.stage]
        settings = base.plan.settings
        self._count, self._rank = plan.micro_batches, part.groups.rank
        self._devices = settings.num_devices if settings.inputs == "sharded" else 1
        self._rows = {n: d for c in part.chunks for n, d in _rows_of(c).items()}

    def call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, reduces: bool, averages: bool
    ) -> Any:
        """See ``ModulePrograms``."""
        inputs = self._calls.read(args, kwargs, reduces)
        seed = 0
        if self._uses_seeds:
            seed = int(torch.randint(2**62, (), generator=self.seeds))
        with autocast_off(current_autocast()), run_by(self._storage.root):
            loss = StageStep(self._part, self.schedule, inputs, self._cut, seed).run()
        return pytree.tree_unflatten([loss], self._calls.out_spec)

    def _cut(self, name: str, value: Any) -> Any:
        """The share of this rank of every micro-batch."""
        if self._rows.get(name) is None or self._devices == 1:
            return value
        micro = value.chunk(self._count)
        return torch.cat([rows.chunk(self._devices)[self._rank] for rows in micro])


def _rows_of(chunk: StageChunk) -> dict[str, int]:
    return rows_of_inputs(chunk.variant.captured, chunk.variant.plan.settings)


def _named(root: nn.Module) -> list[list[tuple[str, torch.Tensor]]]:
    found: Any = (root.named_parameters, root.named_buffers)
    return [list(named(remove_duplicate=False)) for named in found]


class StagedModule(ParallelModule):
    """A rank's stage of a model: a ``ParallelModule`` whose parameters are those of the stage.

    It runs training steps like the example of the plan. Every rank is called with the same global
    batch and gets the loss of the whole model.
    """

    def __init__(
        self,
        plan: StagedPlan,
        storage: ModuleStorage,
        programs: StagePrograms,
        foreign: set[str],
    ) -> None:
        any_plan: Any = plan
        super().__init__(any_plan, storage, programs)
        other = frozenset(foreign)
        known = other.union(*({n for n, _ in own} for own in _named(storage.root)))

        def leave_out(_: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
            """After the ranks have agreed on what is given, each takes what its stage has."""
            unexpected = rest[3]
            names = {prefix + name for name in known}
            unexpected[:] = [name for name in unexpected if name not in names]
            for name in other:
                state.pop(prefix + name, None)

        register: Any = storage.root.register_load_state_dict_pre_hook
        register(leave_out)

    def extra_repr(self) -> str:
        """The plan, and what this rank runs."""
        assert isinstance(self._programs, StagePrograms)
        return f"{self._plan}\nthis is stage {self._programs.schedule.stage}"

    def no_sync(self) -> NoReturn:
        """Raises TensorOptError."""
        raise TensorOptError(_NO_SYNC)


# No attribute of the module: all names but a few are those of the model.
def groups_of(parallel: StagedModule) -> StageGroups:
    """Of the job."""
    programs = programs_of(parallel)
    assert isinstance(programs, StagePrograms)
    return programs.groups
