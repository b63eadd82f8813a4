"""The variants of a parallel module: made when a call needs one, on all ranks alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.call_kind import Call, CallKind, CallReader, TensorKind, literal_kind
from tensoropt_torch.emit.context import RankContext
from tensoropt_torch.emit.input_checks import check_inputs
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.emit.variant import Variant
from tensoropt_torch.emit.weights import of_first_rank
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.frontend import CapturedModel, ModelStructure
from tensoropt_torch.frontend.capture import Arguments
from tensoropt_torch.logs import get_logger
from tensoropt_torch.plan import Plan, VariantStrategy
from tensoropt_torch.planner.checks import check_whole
from tensoropt_torch.planner.pinned import find_pinned
from tensoropt_torch.runtime.agreement import (
    CallAgreement,
    agree_on_model,
    from_first_rank,
    on_all_ranks,
)
from tensoropt_torch.units import format_costs, format_seconds

log = get_logger(__name__)

Shapes = Literal["any", "fixed"]
DEFAULT_MAX_VARIANTS = 16


@dataclass(frozen=True)
class VariantOptions:
    """Which variants a parallel module may make.

    Attributes:
        shapes: ``"any"``: inputs of other shapes and dtypes than the example's get a variant;
            ``"fixed"``: they are an error.
        max_variants: how many there may be, that of the plan included.
    """

    shapes: Shapes = "any"
    max_variants: int = DEFAULT_MAX_VARIANTS

    def __post_init__(self) -> None:
        check_choice("shapes", self.shapes, get_args(Shapes))
        check_whole("max_variants", self.max_variants, least=1)


class Variants:
    """The variants there are, by the kind of their calls.

    Args:
        maker: makes more.
        base: that of the plan.
        reader: reads calls of the module.
    """

    def __init__(
        self, maker: VariantMaker, base: Variant, reader: CallReader, options: VariantOptions
    ) -> None:
        self._maker = maker
        self._reader = reader
        self._options = options
        self._agreement = CallAgreement()
        self._base_kind = maker.kind_of_example(base)
        self._made = {self._base_kind: base}
        self._checked: set[CallKind] = set()

    @property
    def strategies(self) -> tuple[VariantStrategy, ...]:
        """Of all variants but the plan's."""
        return tuple(
            VariantStrategy.of_plan(variant.plan)
            for kind, variant in self._made.items()
            if kind != self._base_kind
        )

    def find(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], mark: str = ""
    ) -> tuple[Variant, Sequence[Any]]:
        """The variant that a call runs, and its inputs. Collective: all ranks make calls of
        the same kind, with the same ``mark``.

        Raises:
            TensorOptError: on every rank; the calls differ, or a variant is needed that
                cannot be made.
        """
        call, error = None, None
        try:
            call = self._reader.read(args, kwargs)
        except TensorOptError as caught:
            error = caught
        self._agreement.check(
            0 if call is None else call.kind.digest_with(mark),
            lambda: "" if call is None else self._describe(call.kind) + mark,
            error,
        )
        assert call is not None
        variant = self._made.get(call.kind)
        if variant is None:
            variant = self._make(call)
        if call.kind not in self._checked:
            check_inputs(variant.input_names, call.values, self._maker.is_shared_out)
            self._checked.add(call.kind)
        return variant, call.values

    def _make(self, call: Call) -> Variant:
        self._check(call.kind)
        start = time.perf_counter()
        what = self._describe(call.kind)
        log.info("making a variant for %s", what)
        variant = self._maker.make(call)
        self._made[call.kind] = variant
        costs = format_costs(variant.plan.memory_bytes, variant.plan.time_s)
        seconds = format_seconds(time.perf_counter() - start)
        log.info("made variant %d in %s: %s", len(self._made), seconds, costs)
        return variant

    def _check(self, kind: CallKind) -> None:
        base = self._base_kind
        if self._options.shapes == "fixed" and (kind.spec, kind.shapes) != (
            base.spec,
            base.shapes,
        ):
            raise TensorOptError(
                f"the module was called with {self._describe(kind)}, the plan is for "
                f"{self._describe(base)} on this rank; give inputs of these shapes, plan again "
                "for others, or leave shapes='fixed' out so that variants are made for them"
            )
        if len(self._made) >= self._options.max_variants:
            calls = "; ".join(self._describe(made) for made in self._made)
            raise TensorOptError(
                f"the module has {len(self._made)} variants, as many as max_variants allows, and "
                f"this call needs another one, for {self._describe(kind)}; there are: {calls}. "
                "Pad inputs to few different sizes (a collator with pad_to_multiple_of, "
                "drop_last=True), or raise max_variants"
            )

    def _describe(self, kind: CallKind) -> str:
        return kind.describe(self._made[self._base_kind].input_names)


class VariantMaker:
    """Makes variants of a model under a plan.

    Args:
        structure: the model, to be captured again.
        storage: the layouts of the parameters, by name.
        root: has parameters and buffers.
    """

    def __init__(
        self,
        plan: Plan,
        structure: ModelStructure,
        context: RankContext,
        storage: Mapping[str, str],
        root: nn.Module,
        *,
        one_process_random: bool,
    ) -> None:
        self._plan = plan
        self._structure = structure
        self._context = context
        self._storage = storage
        self._root = root
        self._one_process_random = one_process_random
        self._known = {strategy.fingerprint: strategy for strategy in plan.variants}

    def is_shared_out(self, name: str) -> bool:
        """Whether each rank gets its own share of an input."""
        settings = self._plan.settings
        return settings.inputs == "sharded" and name not in settings.whole_inputs

    def kind_of_example(self, base: Variant) -> CallKind:
        """Of calls like the example that the plan was made for."""
        part = RankPart(self._plan, base.captured, dist.get_rank())
        inputs: list[TensorKind | tuple[str, str]] = []
        for source in base.captured.inputs:
            value = source.placeholder.meta["val"]
            if source.kind == "literal":
                inputs.append(literal_kind(value, lambda: "of the example"))
            else:
                shape = part.local_shape(source)
                inputs.append(TensorKind(shape, value.dtype, value.requires_grad))
        modes, trained = self._structure.modes, self._structure.trained
        captured = base.captured
        return CallKind(modes, trained, captured.in_spec, tuple(inputs), captured.context)

    def make(self, call: Call) -> Variant:
        """The variant for calls of this kind. Collective.

        Raises:
            TensorOptError: on every rank; the model cannot be captured so.
        """
        captured = on_all_ranks(lambda: self._capture(call))
        agree_on_model(captured)
        strategy = from_first_rank(lambda: self._strategy(captured))
        plan = self._plan.of_variant(captured, strategy)
        part = RankPart(plan, captured, dist.get_rank(), self._storage)
        buffers = {name for name, _ in self._root.named_buffers(remove_duplicate=False)}
        tables = {
            name: of_first_rank(name, constant, self._context.device)
            for name, constant in captured.constants.items()
            if name not in buffers
        }
        return emit_variant(
            part, self._context, self._root, tables, one_process_random=self._one_process_random
        )

    def _strategy(self, captured: CapturedModel) -> VariantStrategy:
        known = self._known.get(captured.fingerprint)
        return known or find_pinned(self._plan, captured, self._storage)

    def _capture(self, call: Call) -> CapturedModel:
        kind = call.kind
        arguments = self._global_arguments(call)
        return self._structure.capture(arguments, kind.modes, kind.trained, kind.context)

    def _global_arguments(self, call: Call) -> Arguments:
        """The arguments of the whole job, tensors on the meta device."""
        args, kwargs = pytree.tree_unflatten(list(call.values), call.kind.spec)
        names = self._structure.input_names(args, kwargs)
        values = [
            self._global_input(name, value, kind)
            for name, value, kind in zip(names, call.values, call.kind.inputs, strict=True)
        ]
        whole: Arguments = pytree.tree_unflatten(values, call.kind.spec)
        return whole

    def _global_input(self, name: str, value: Any, kind: Any) -> Any:
        if not isinstance(kind, TensorKind):
            return value
        shape = kind.shape
        if shape and self.is_shared_out(name):
            shape = (shape[0] * self._context.num_devices, *shape[1:])
        return torch.empty(shape, dtype=kind.dtype, device="meta", requires_grad=kind.requires_grad)


def emit_variant(
    part: RankPart,
    context: RankContext,
    root: nn.Module,
    tables: Mapping[str, torch.Tensor],
    *,
    one_process_random: bool,
) -> Variant:
    """The variant that runs a rank's part. Collective: makes the process groups it needs."""
    context.groups.create(part.axis_sets)
    emitter = part.emitter(
        context.device, context.groups.name, one_process_random=one_process_random
    )
    graph = emitter.emit()
    return Variant(part.plan, part.captured, graph, root, tables, emitter.uses_seeds)
