"""Calls of a module in stages: all ranks make the same, and each kind of them has what runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.calls.attribute_watch import AttributeWatch
from tensoropt_torch.calls.call_kind import (
    CallKind,
    CallReader,
    ModuleCall,
    TensorKind,
    literal_kind,
)
from tensoropt_torch.calls.capture_check import CaptureCheck
from tensoropt_torch.calls.input_checks import InputComparison
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.capture import Arguments
from tensoropt_torch.module.stage_maker import StageMaker
from tensoropt_torch.module.stage_step import StagePart
from tensoropt_torch.module.variants import DEFAULT_MAX_VARIANTS, Shapes
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.progress import progress
from tensoropt_torch.runtime.agreement import (
    CallAgreement,
    agree_on_model,
    from_first_rank,
    on_all_ranks,
)


class FindStages(Protocol):
    """Finds the plan of another graph of the model, see ``staging/pinned.py``."""

    def __call__(
        self,
        plan: StagedPlan,
        captured: CapturedModel,
        owned: Sequence[frozenset[str]],
        storage: Mapping[str, str],
        most_rows: int,
    ) -> StagedPlan: ...


@dataclass(frozen=True)
class StageVariantOptions:
    """Which calls a module in stages runs besides those like its example; as ``VariantOptions``."""

    find: FindStages
    shapes: Shapes = "any"
    max_variants: int = DEFAULT_MAX_VARIANTS


class StageCalls:
    """Sees to it that all ranks make the same call, and knows what each runs.

    Args:
        base: what runs calls like the example of the plan.
    """

    def __init__(
        self,
        maker: StageMaker,
        plan: StagedPlan,
        base: StagePart,
        device: torch.device,
        attributes: AttributeWatch,
        check: CaptureCheck,
        options: StageVariantOptions,
    ) -> None:
        self._maker = maker
        self._plan = plan
        self._attributes = attributes
        self._check = check
        self._options = options
        captured = base.captured
        modules, parameters = list(maker.root.modules()), list(maker.root.parameters())
        self._reader = CallReader(modules, parameters, device, captured.context, attributes)
        self._comparison = InputComparison(deferred=self._reader.waits_for_values)
        self._agreement = CallAgreement(maker.groups.control())
        self._trained = tuple(parameter.requires_grad for parameter in parameters)
        modes = tuple(module.training for module in modules)
        inputs = tuple(_kind_of(source.placeholder, source.kind) for source in captured.inputs)
        trained = maker.structure.trained
        self._base = CallKind(modes, trained, captured.in_spec, inputs, captured.context)
        self._parts = {self._base: base}

    def find(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], mark: str
    ) -> tuple[StagePart, Sequence[Any]]:
        """What runs a call, and its inputs. Collective: all ranks make it, with the same ``mark``.

        Raises:
            TensorOptError: on every rank; the calls differ, or it cannot run in these stages.
        """
        call, error = None, ""
        try:
            call = self._read(args, kwargs)
        except TensorOptError as caught:
            error = str(caught)
        names = [] if call is None else self._names(call.kind)
        inputs = {} if call is None else dict(zip(names, call.values, strict=True))
        number = self._comparison.begin(inputs)
        digest = -1 if call is None else call.kind.digest_with(mark)
        if not self._agreement.begin(digest, number).is_reached() or call is None:
            text = error if call is None else call.kind.describe(names) + mark
            self._check_reports(self._agreement.exchange((call is None, text)))
            self._comparison.check(self._agreement.exchange(self._comparison.take()))
        assert call is not None
        if call.kind not in self._parts:
            self._parts[call.kind] = self._made(call)
        part = self._parts[call.kind]
        whole = [None] * len(call.values)
        self._check.run(part.captured, call, whole, self._attributes.modules)
        return part, call.values

    def _check_reports(self, reports: Sequence[tuple[bool, str]]) -> None:
        for rank, (is_error, text) in enumerate(reports):
            if is_error:
                raise TensorOptError(f"rank {rank}: {text}")
        for rank, (_, text) in enumerate(reports):
            if text != reports[0][1]:
                raise TensorOptError(
                    f"the ranks call the module differently: rank 0 with {reports[0][1]}; rank "
                    f"{rank} with {text}; call it alike on all ranks: in the same mode, with the "
                    "same global batch, and with equal numbers, strings and flags"
                )

    def _names(self, kind: CallKind) -> list[str]:
        """Of the inputs."""
        places = list(range(len(kind.inputs)))  # in place of values
        args, kwargs = pytree.tree_unflatten(places, kind.spec)
        return self._maker.structure.input_names(args, kwargs)

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModuleCall:
        """The call, with what is trained of the whole model."""
        call = self._reader.read(args, kwargs)
        if call.kind.trained != self._trained:
            raise TensorOptError(
                "requires_grad of parameters has changed since the model was planned, and stages "
                "train those that were trained then; set it before find_stages"
            )
        return replace(call, kind=replace(call.kind, trained=self._maker.structure.trained))

    def _made(self, call: ModuleCall) -> StagePart:
        """What runs calls of this kind. Collective."""
        names = self._names(call.kind)
        text = call.kind.describe(names)
        on_all_ranks(lambda: self._check_kind(call.kind, text))
        maker = self._maker
        with progress(f"making stages for {text}", ticking=True):
            try:
                captured = on_all_ranks(lambda: self._capture(call))
                agree_on_model(captured)
                own = self._plan, captured, maker.owned, maker.storage, maker.most_rows
                plan = from_first_rank(lambda: self._options.find(*own))
                return maker.part(plan, captured)
            except TensorOptError as error:
                raise TensorOptError(f"in stages, a call in {text}: {error}") from error

    def _check_kind(self, kind: CallKind, text: str) -> None:
        base, options = self._base, self._options
        if options.shapes == "fixed" and (kind.spec, kind.shapes) != (base.spec, base.shapes):
            raise TensorOptError(
                f"the module was called with {text}, the plan is for "
                f"{base.describe(self._names(base))}; give inputs of these shapes, plan again for "
                "others, or leave shapes='fixed' out so that variants are made for them"
            )
        if len(self._parts) >= options.max_variants:
            raise TensorOptError(
                f"the module has {len(self._parts)} variants, as many as max_variants allows, and "
                f"this call needs another one, for {text}; pad inputs to few different sizes, or "
                "raise max_variants"
            )

    def _capture(self, call: ModuleCall) -> CapturedModel:
        kind = call.kind
        values = [_on_meta(value, of) for value, of in zip(call.values, kind.inputs, strict=True)]
        arguments: Arguments = pytree.tree_unflatten(values, kind.spec)
        self._attributes.write_all()
        return self._maker.structure.capture(arguments, kind.modes, kind.trained, kind.context)


def _on_meta(value: Any, kind: TensorKind | tuple[str, str]) -> Any:
    if not isinstance(kind, TensorKind):
        return value
    return torch.empty(
        kind.shape, dtype=kind.dtype, device="meta", requires_grad=kind.requires_grad
    )


def _kind_of(placeholder: Any, kind: str) -> TensorKind | tuple[str, str]:
    value = placeholder.meta["val"]
    if kind == "literal":
        return literal_kind(value, lambda: "of the example")
    return TensorKind(tuple(value.shape), value.dtype, value.requires_grad)
