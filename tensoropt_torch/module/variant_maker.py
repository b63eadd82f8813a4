"""Makes variants of a model under a plan: captures it, asks for a strategy, writes the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch import emit
from tensoropt_torch.batches import batch_rows, micro_batched
from tensoropt_torch.calls.attribute_watch import AttributeWatch
from tensoropt_torch.calls.call_kind import CallKind, ModuleCall, TensorKind, literal_kind
from tensoropt_torch.calls.row_hints import shares_in_words
from tensoropt_torch.calls.uneven import resized
from tensoropt_torch.emit.boxed_step import boxed_step
from tensoropt_torch.emit.compilation import compiled
from tensoropt_torch.emit.compiler import CompileOptions
from tensoropt_torch.emit.quick_calls import quick_forward
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, ModelStructure
from tensoropt_torch.frontend.capture import Arguments
from tensoropt_torch.frontend.watching import Lifted, Numbers, UnfollowableError
from tensoropt_torch.logs import get_logger
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.cut_constants import cut_constants
from tensoropt_torch.module.reached import Reach
from tensoropt_torch.module.variant import Variant, variant_of
from tensoropt_torch.module.variant_table import earlier
from tensoropt_torch.plan import Plan, Settings, VariantStrategy
from tensoropt_torch.runtime.agreement import (
    agree_on_model,
    from_first_rank,
    gather,
    on_all_ranks,
)
from tensoropt_torch.space.rows import rows_of_inputs
from tensoropt_torch.values.weights import of_first_rank

log = get_logger(__name__)


@dataclass(frozen=True)
class Made:
    """A variant, and the numbers that its graph takes as inputs or that are only guarded."""

    variant: Variant
    numbers: Numbers | None = None


class FindStrategy(Protocol):
    """Finds a strategy for another graph of the model, whose parameters are stored already."""

    def __call__(
        self,
        plan: Plan,
        captured: CapturedModel,
        storage: Mapping[str, str],
        *,
        gathered: bool = ...,
    ) -> VariantStrategy: ...


class VariantMaker:
    """Makes variants of a model under a plan.

    Args:
        structure: the model, to be captured again.
        storage: the layouts of parameters and buffers, by name.
        root: has parameters and buffers.
        find: the search for a strategy.
        most_rows: of a micro-batch; None: the plan has none.
        compiler: compiles the graphs; None: nothing does.
        attributes: of the model, which its graphs read.
    """

    def __init__(
        self,
        plan: Plan,
        structure: ModelStructure,
        context: RankContext,
        storage: Mapping[str, str],
        root: nn.Module,
        *,
        find: FindStrategy,
        one_process_random: bool,
        most_rows: int | None = None,
        compiler: CompileOptions | None = None,
        attributes: AttributeWatch,
    ) -> None:
        self.attributes = attributes
        self._plan = plan
        self._structure = structure
        self._context = context
        self._storage = storage
        self._root = root
        self._find = find
        self._one_process_random = one_process_random
        self._most_rows = most_rows
        self._compiler = compiler
        self._known = {known.key: known for known in plan.variants}

    def input_names(self, kind: CallKind) -> list[str]:
        """What the inputs of such calls are called."""
        places = list(range(len(kind.inputs)))  # in place of values
        args, kwargs = pytree.tree_unflatten(places, kind.spec)
        return self._structure.input_names(args, kwargs)

    def rows_dims(self, kind: CallKind) -> list[int | None]:
        """The dim of each input of such calls along which each rank has its own share; None:
        all get it whole."""
        return [self._plan.settings.rows_dim(name) for name in self.input_names(kind)]

    def kind_of_example(self, base: Variant) -> CallKind:
        """The kind of calls like the example that the plan was made for."""
        part = RankPart(self._plan, base.captured, dist.get_rank())
        inputs: list[TensorKind | tuple[str, str]] = []
        for source in base.captured.inputs:
            value = source.placeholder.meta["val"]
            if source.kind == "literal":
                inputs.append(literal_kind(value, lambda: "of the example"))
            else:
                shape = part.called_shape(source)
                inputs.append(TensorKind(shape, value.dtype, value.requires_grad))
        modes, trained = self._structure.modes, self._structure.trained
        captured = base.captured
        return CallKind(modes, trained, captured.in_spec, tuple(inputs), captured.context)

    def make(
        self, call: ModuleCall, made: Sequence[Variant] = (), numbers: Sequence[Lifted] = ()
    ) -> Made:
        """The variant for calls of this kind, which may be one that was ``made`` already, with
        ``numbers`` as inputs of its graph if that can be. Collective.

        Raises:
            TensorOptError: on every rank; the model cannot be captured so.
        """
        captured = on_all_ranks(lambda: self._capture(call))
        agree_on_model(captured)
        if numbers and self._takes_numbers:
            marked = on_all_ranks(lambda: self._with_numbers(call, captured, numbers))
            if marked is not None:
                agree_on_model(marked)
                variant = self._emitted(marked, call, () if marked.takes_numbers else made)
                if variant is not None:
                    return Made(variant, marked.numbers)
        variant = self._emitted(captured, call, made)
        assert variant is not None
        return Made(variant)

    @property
    def _takes_numbers(self) -> bool:
        """Neither micro-batches nor compiled parts do, and draws of one process are in tests."""
        return self._most_rows is None and self._compiler is None and not self._one_process_random

    def _with_numbers(
        self, call: ModuleCall, plain: CapturedModel, numbers: Sequence[Lifted]
    ) -> CapturedModel | None:
        kind, arguments = call.kind, self._global_arguments(call)
        structure = self._structure
        try:
            return structure.capture_with_numbers(
                arguments, kind.modes, kind.trained, plain, numbers
            )
        except UnfollowableError as reason:
            log.info("numbers %s are no inputs: %s", [*map(str, numbers)], reason)
            return None

    def _emitted(
        self, whole: CapturedModel, call: ModuleCall, made: Sequence[Variant]
    ) -> Variant | None:
        """A variant that runs the graph; None: its numbers cannot be inputs on the ranks."""
        captured = on_all_ranks(lambda: self._micro_batched(whole, call.kind.gathered))
        same = from_first_rank(lambda: earlier(captured, call.kind.gathered, made))
        if same >= 0:
            return made[same]
        strategy = from_first_rank(lambda: self._strategy(captured, call.kind.gathered))
        plan = self._plan.of_variant(captured, strategy)
        part = RankPart(plan, captured, dist.get_rank(), self._storage)
        if not all(gather(part.takes_numbers)):
            return None
        buffers = {name for name, _ in self._root.named_buffers(remove_duplicate=False)}
        folded = {
            name: of_first_rank(name, constant, self._context.device)
            for name, constant in captured.constants.items()
            if name not in buffers
        }
        tables = cut_constants(part, folded, self._context.mesh)
        variant = emit_variant(
            part,
            self._context,
            self._root,
            tables,
            one_process_random=self._one_process_random,
            compiler=self._compiler,
            settings=self._plan.settings,
        )
        variant.strategy = strategy
        variant.written_on(self.attributes.modules)
        return variant

    def _strategy(self, captured: CapturedModel, gathered: bool) -> VariantStrategy:
        known = self._known.get((captured.fingerprint, gathered, captured.micro_batches))
        return known or self._find(self._plan, captured, self._storage, gathered=gathered)

    def _micro_batched(self, whole: CapturedModel, gathered: bool) -> CapturedModel:
        """In micro-batches of no more rows than those of the plan, where it has some and
        gradients are made."""
        most = self._most_rows
        if most is None or not whole.context.gradients:
            return whole
        settings = self._plan.settings
        by_name = () if gathered else settings.whole_inputs
        rows = batch_rows(whole, by_name)
        shares = 1 if gathered or settings.inputs != "sharded" else settings.num_devices
        counts = (c for c in range(1, rows + 1) if rows % (c * shares) == 0 and rows <= c * most)
        return micro_batched(whole, next(counts, 1), by_name)

    def _capture(self, call: ModuleCall) -> CapturedModel:
        kind = call.kind
        arguments = self._global_arguments(call)
        self.attributes.write_all()
        try:
            return self._structure.capture(arguments, kind.modes, kind.trained, kind.context)
        except TensorOptError as error:
            if kind.gathered or not any(dim is not None for dim in self.rows_dims(kind)):
                raise
            shares = shares_in_words(self.input_names(kind), kind, self.rows_dims(kind))
            raise TensorOptError(f"{error}; {shares}") from error

    def _global_arguments(self, call: ModuleCall) -> Arguments:
        """The arguments of the whole job, tensors on the meta device."""
        args, kwargs = pytree.tree_unflatten(list(call.values), call.kind.spec)
        names = self._structure.input_names(args, kwargs)
        settings = self._plan.settings.gathered if call.kind.gathered else self._plan.settings
        values = [
            self._global_input(value, kind, settings.rows_dim(name))
            for name, value, kind in zip(names, call.values, call.kind.inputs, strict=True)
        ]
        whole: Arguments = pytree.tree_unflatten(values, call.kind.spec)
        return whole

    def _global_input(self, value: Any, kind: Any, dim: int | None) -> Any:
        if not isinstance(kind, TensorKind):
            return value
        shape = kind.shape
        if dim is not None and dim < len(shape):
            shape = resized(shape, dim, shape[dim] * self._context.num_devices)
        return torch.empty(shape, dtype=kind.dtype, device="meta", requires_grad=kind.requires_grad)


def emit_variant(
    part: RankPart,
    context: RankContext,
    root: nn.Module,
    tables: Mapping[str, torch.Tensor],
    *,
    one_process_random: bool,
    compiler: CompileOptions | None = None,
    settings: Settings | None = None,
) -> Variant:
    """The variant that runs a rank's part, with a ``compiler`` compiled. Collective: makes the
    process groups it needs. ``settings`` are those of the module, if others."""
    context.groups.create(part.axis_sets)
    emitter = part.emitter(
        context.device, context.groups.name, one_process_random=one_process_random
    )
    graph = emitter.emit()
    if compiler is not None:
        graph = compiled(graph, compiler)
    variant = variant_of(part, graph, root, tables, emitter.uses_seeds, context.groups.name)
    variant.make_forward = partial(quick_forward, graph)
    if compiler is None:
        variant.boxed = boxed_step(graph, variant.own_numbers, part.captured, variant.registry)
    else:
        backend = emit.backend_of(part, compiler, context.groups.name)
        variant.whole = emit.whole_graph(part, emitter.program, backend, graph)
        # Those that micro-batches add up are sent once, if they are not kept.
        variant.make_cut = lambda reduces: emit.cut_graph(
            part, emitter.program, backend, lambda edge: edge.summed or not reduces
        )
        variant.reach = Reach(part.captured)
    settings = settings or part.plan.settings
    rows = rows_of_inputs(part.captured, settings.shares)
    variant.input_rows = tuple(rows.get(name) for name in variant.input_names)
    variant.output_rows = part.output_rows(settings)
    return variant
