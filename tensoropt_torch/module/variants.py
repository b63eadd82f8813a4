"""The variants of a parallel module: made when a call needs one, on all ranks alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tensoropt_torch.calls.call_kind import CallKind, CallReader, ModuleCall, TensorKind
from tensoropt_torch.calls.capture_check import CaptureCheck
from tensoropt_torch.calls.input_checks import InputComparison, check_inputs, is_compared
from tensoropt_torch.calls.row_hints import misplaced_rows
from tensoropt_torch.calls.shared_gradients import SharedGradients
from tensoropt_torch.calls.uneven import Shares, rows_of
from tensoropt_torch.checks import check_whole
from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.logs import get_logger
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.module.variant_maker import FindStrategy, VariantMaker
from tensoropt_torch.module.variant_table import Match, VariantTable
from tensoropt_torch.plan import VariantStrategy
from tensoropt_torch.progress import progress
from tensoropt_torch.runtime.agreement import (
    CallAgreement,
    PendingAgreement,
    confirming,
    on_all_ranks,
)
from tensoropt_torch.units import format_costs

log = get_logger(__name__)

Shapes = Literal["any", "fixed"]
# The outputs of a step of a variant, for inputs, a seed, and numbers that the graph takes besides.
RunStep = Callable[[Variant, Sequence[Any], int, tuple[Any, ...]], Any]
DEFAULT_MAX_VARIANTS = 16


@dataclass(frozen=True)
class VariantOptions:
    """Which variants a parallel module may make.

    Attributes:
        find: the search for the strategy of a variant.
        shapes: ``"any"``: inputs of other shapes and dtypes than the example's get a variant;
            ``"fixed"``: they are an error.
        max_variants: how many there may be, that of the plan included.
        check_capture: whether the graph is compared with the module at the first training call.
    """

    find: FindStrategy
    shapes: Shapes = "any"
    max_variants: int = DEFAULT_MAX_VARIANTS
    check_capture: bool = True

    def __post_init__(self) -> None:
        check_choice("shapes", self.shapes, get_args(Shapes))
        check_whole("max_variants", self.max_variants, least=1)
        if not isinstance(self.check_capture, bool):
            raise TensorOptError(
                f"check_capture = {self.check_capture!r} is not allowed: it must be True or False"
            )


@dataclass(frozen=True)
class VariantCall:
    """A call of a variant with these inputs; ``shares`` of a batch that was gathered
    for it. The ranks may still have to agree on it. ``numbers``: what the graph takes besides."""

    variant: Variant
    inputs: Sequence[Any]
    shares: Shares | None = None
    agreement: PendingAgreement | None = None
    numbers: tuple[Any, ...] = ()

    def run(self, seed: int, run: RunStep, averages: bool = False, repeats: bool = False) -> Any:
        """The outputs for this rank, whose gradients count as ``shared_gradients`` says.
        ``repeats``: the call may be undone and repeated.

        Raises:
            DifferentCallsError: on every rank; they do not agree. Nothing has changed.
        """
        variant, ranks = self.variant, self.variant.plan.num_devices
        if not any(dim is not None for dim in variant.input_rows) or ranks == 1:
            with confirming(self.agreement):
                outputs = run(variant, self.inputs, seed, self.numbers)
            return variant.put_back(outputs)
        gathered = self.shares is not None
        rows = variant.output_rows, variant.input_rows
        gradients = SharedGradients(ranks, *rows, averages, gathered, repeats)
        with confirming(self.agreement):
            outputs = run(variant, gradients.entering(self.inputs), seed, self.numbers)
        if self.shares is not None:
            outputs = self.shares.cut(outputs, variant.output_rows)
        return variant.put_back(gradients.leaving(outputs))


class Variants:
    """The variants there are, by the kind of their calls.

    Args:
        maker: makes more.
        base: that of the plan.
        reader: reads calls of the module.
        check: compares the graph of the first training call with the module.
        agreement: of the ranks on calls.
    """

    def __init__(
        self,
        maker: VariantMaker,
        base: Variant,
        reader: CallReader,
        options: VariantOptions,
        check: CaptureCheck,
        agreement: CallAgreement,
    ) -> None:
        self._maker = maker
        self._check_of_capture = check
        self._base = base
        self._reader = reader
        self._options = options
        self._agreement = agreement
        self._comparison = InputComparison(deferred=reader.waits_for_values)
        self._whole: dict[Any, list[tuple[int, str]]] = {}
        self._base_kind = maker.kind_of_example(base)
        self._made = VariantTable(maker.attributes)
        self._made.add(self._base_kind, base)
        self._checked: set[CallKind] = set()
        self._warned = False

    @property
    def strategies(self) -> tuple[VariantStrategy, ...]:
        """The strategies of all variants but the plan's."""
        return tuple(
            variant.strategy for variant in self._made.variants if variant.strategy is not None
        )

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any], mark: str = "") -> VariantCall:
        """What a call runs. Collective: all ranks make calls of the same kind, with the same
        ``mark``, or have shares of a batch that differ in size. What was called like this
        before may run while the ranks agree.

        Raises:
            TensorOptError: on every rank; the calls differ, or a variant is needed that
                cannot be made.
        """
        call, error = self._read(args, kwargs)
        number = -1 if call is None else call.kind.digest_with(mark)
        pending = self._agreement.begin(number, self._number_of_inputs(call))
        known = None if call is None else self._made.find(call.kind)
        if call is not None and known is not None and known.kind in self._checked:
            return VariantCall(known.variant, call.values, None, pending, known.numbers)
        if pending.is_reached():
            if call is None:
                assert error is not None
                raise error
            return self._found(call)
        return self._reconciled(call, error, mark)

    def find_differing(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], mark: str = ""
    ) -> VariantCall:
        """What ``find`` gives where it turned out that the calls differ."""
        call, error = self._read(args, kwargs)
        return self._reconciled(call, error, mark)

    def _read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[ModuleCall | None, TensorOptError | None]:
        try:
            return self._reader.read(args, kwargs), None
        except TensorOptError as error:
            return None, error

    def _reconciled(
        self,
        call: ModuleCall | None,
        error: Exception | None,
        mark: str,
    ) -> VariantCall:
        inputs = self._comparison.take()
        self._check_kinds(call, mark, error)
        self._comparison.check(self._agreement.exchange(inputs))
        assert call is not None
        call, shares = self._gathered(call)
        return replace(self._found(call), shares=shares)

    def _number_of_inputs(self, call: ModuleCall | None) -> int:
        """Equal for inputs that are alike, of those that should be."""
        return self._comparison.begin(self._whole_inputs(call))

    def _whole_inputs(self, call: ModuleCall | None) -> dict[str, Any]:
        """What all ranks should have alike, where there are others: numbers, and tensors that
        are not shared out."""
        if call is None or not self._agreement.is_needed:
            return {}
        dims = [len(i.shape) if isinstance(i, TensorKind) else -1 for i in call.kind.inputs]
        form = (call.kind.spec, *dims)
        if form not in self._whole:
            try:
                self._whole[form] = self._places_of_whole(call)
            except Exception:  # not a call of the module, which all ranks have to hear
                return {}
        return {name: call.values[index] for index, name in self._whole[form]}

    def _places_of_whole(self, call: ModuleCall) -> list[tuple[int, str]]:
        names, dims = self._maker.input_names(call.kind), self._maker.rows_dims(call.kind)
        inputs = enumerate(zip(names, call.values, dims, strict=True))
        return [
            (i, name) for i, (name, value, dim) in inputs if is_compared(value, dim is not None)
        ]

    def _found(self, call: ModuleCall) -> VariantCall:
        """The variant for a call that all ranks make."""
        match = self._made.find(call.kind)
        if match is None:
            match = self._make(call)
        if match.kind not in self._checked:
            variant, calls = match.variant, self._comparison.calls
            self._comparison.take()
            is_shared_out = variant.plan.settings.is_shared_out
            check_inputs(variant.input_names, call.values, is_shared_out, calls)
            modules = self._maker.attributes.modules
            self._check_of_capture.run(variant.captured, call, variant.input_rows, modules)
            self._checked.add(match.kind)
        return VariantCall(match.variant, call.values, numbers=match.numbers)

    def _check_kinds(self, call: ModuleCall | None, mark: str, error: Exception | None) -> None:
        """Raises TensorOptError, on every rank, unless calls differ in rows alone."""
        text = str(error) if call is None else self._describe(call.kind) + call.kind.frozen + mark
        without_rows = None if call is None else self._without_rows(call).digest_with(mark)
        reports = self._agreement.exchange((without_rows, text))
        for rank, (found, report) in enumerate(reports):
            if found is None:
                raise TensorOptError(f"rank {rank}: {report}") from error
        (first, text), sharded = reports[0], self._base.plan.settings.inputs == "sharded"
        for rank, (found, report) in enumerate(reports):
            if found != first or (report != text and not sharded):
                raise TensorOptError(
                    f"the ranks call the module differently: rank 0 with {text}; rank {rank} with "
                    f"{report}; call it alike on all ranks: in the same mode, with inputs of the "
                    "same shapes and dtypes, with equal numbers, strings and flags, after as many "
                    "steps of optimizers, and with the same parameters frozen"
                )

    def _without_rows(self, call: ModuleCall) -> CallKind:
        return call.kind.without_rows(self._maker.rows_dims(call.kind))

    def _gathered(self, call: ModuleCall) -> tuple[ModuleCall, Shares]:
        """The call with all rows of a batch of which the ranks have unequal shares."""
        dims = self._maker.rows_dims(call.kind)
        rows = on_all_ranks(lambda: rows_of(call, dims))
        shares = Shares(tuple(self._agreement.exchange(rows)))
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the ranks have {', '.join(map(str, shares.rows))} rows of a batch: all of it is "
                "computed on each; drop_last=True, or a sampler that pads, is faster",
                stacklevel=5,
            )
        return on_all_ranks(lambda: shares.gather(call, dims)), shares

    def _warn_of_misplaced_rows(self, kind: CallKind) -> None:
        if kind.gathered:
            return
        names, dims = self._maker.input_names(kind), self._maker.rows_dims(kind)
        ranks = self._base.plan.num_devices
        for hint in misplaced_rows(names, self._base_kind, kind, dims, ranks):
            warnings.warn(hint, stacklevel=6)

    def _make(self, call: ModuleCall) -> Match:
        self._check(call.kind)
        self._warn_of_misplaced_rows(call.kind)
        what = f"variant {len(self._made.variants) + 1}, for {self._describe(call.kind)}"
        numbers = self._made.numbers_apart(call.kind)
        with progress(f"making {what}", ticking=True):
            made = self._maker.make(call, self._made.variants, numbers)
        if numbers and made.numbers is None:
            self._made.fix(numbers)
        variant, is_new = made.variant, made.variant not in self._made.variants
        self._made.add(call.kind, variant, made.numbers)
        costs = format_costs(variant.plan.memory_bytes, variant.plan.time_s)
        log.info("%s: %s", what, costs if is_new else "the graph of an earlier one")
        match = self._made.find(replace(call.kind, attributes=self._maker.attributes.look()))
        assert match is not None
        return match

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
        if len(self._made.variants) >= self._options.max_variants:
            self._made.check_numbers(kind, self._maker.input_names(kind))
            calls = "; ".join(self._describe(made) for made in self._made.kinds)
            count = len(self._made.variants)
            raise TensorOptError(
                f"the module has {count} variants, as many as max_variants allows, and this call "
                f"needs another one, for {self._describe(kind)}; there are: {calls}. "
                "Pad inputs to few different sizes (a collator with pad_to_multiple_of, "
                "drop_last=True), or raise max_variants"
            )

    def _describe(self, kind: CallKind) -> str:
        return kind.describe(self._maker.input_names(kind))
