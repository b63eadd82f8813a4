"""Calls of a module in stages: all ranks make the same, and each kind of them has what runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
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
from tensoropt_torch.calls.input_checks import InputComparison, check_inputs, is_compared
from tensoropt_torch.calls.shared_gradients import SharedGradients
from tensoropt_torch.calls.uneven import Shares, rows_of
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.frontend.capture import Arguments
from tensoropt_torch.module.stage_maker import StageMaker
from tensoropt_torch.module.stage_part import StagePart
from tensoropt_torch.module.variants import DEFAULT_MAX_VARIANTS, Shapes
from tensoropt_torch.plan import StagedPlan
from tensoropt_torch.progress import progress
from tensoropt_torch.runtime.agreement import (
    PendingAgreement,
    agree_on_model,
    from_first_rank,
    gather,
    on_all_ranks,
)
from tensoropt_torch.runtime.lost_ranks import LostRanksError

Flags = Mapping[str, bool]  # whether parameters require gradients, by name


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


@dataclass(frozen=True)
class StageCall:
    """What a call runs: a part with these inputs, of the whole batch, of which the ranks were
    given ``shares``. They may still have to agree on it."""

    part: StagePart
    inputs: Sequence[Any]
    shares: Shares | None = None
    agreement: PendingAgreement | None = None

    def own(self, outputs: Sequence[Any], averages: bool) -> Sequence[Any]:
        """What this rank gets of the outputs of the batch. Their gradients count as
        ``shared_gradients`` says, with ``averages``."""
        if self.shares is None:
            return outputs
        rows = self.part.output_rows
        own = self.shares.cut(outputs, rows)
        gradients = SharedGradients(dist.get_world_size(), rows, (), averages, gathered=True)
        found: Sequence[Any] = gradients.leaving(own)
        return found


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
        self._agreement = maker.agreement
        self._own = dict(maker.root.named_parameters())
        self._flags = self._own_flags  # those that all ranks know of
        self._trained = maker.structure.trained
        modes = tuple(module.training for module in modules)
        inputs = tuple(_kind_of(source.placeholder, source.kind) for source in captured.inputs)
        self._base = CallKind(modes, self._trained, captured.in_spec, inputs, captured.context)
        self._input_names: dict[pytree.TreeSpec, list[str]] = {}
        self._watch(captured)
        self._parts = {self._base: base}
        self._checked: set[CallKind] = set()  # of batches of which ranks give shares
        self._found_before: set[CallKind] = set()  # of whole batches

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any], mark: str) -> StageCall:
        """What a call runs. Collective: all ranks make it, with the same ``mark``; with shares of
        the batch, which may differ in size, or all of it. What was called like this before may
        run while the ranks agree, unless they have shares.

        Raises:
            TensorOptError: on every rank; the calls differ, or it cannot run in these stages.
        """
        call, error, dims = self._asked(args, kwargs)
        number = self._comparison.begin(_alike(self._names_of(call), dims, call))
        digest = -1 if call is None else call.kind.digest_with(mark)
        if self._own_flags != self._flags:
            digest = -2 - dist.get_rank()  # another one on each: all have to hear of it
        pending = self._agreement.begin(digest, number)
        if call is not None and call.kind in self._found_before:
            return StageCall(self._parts[call.kind], call.values, agreement=pending)
        if pending.is_reached() and call is not None:
            return self._with_rows(call, dims, Shares.equal())
        return self._reconciled(call, error, dims, mark)

    def find_differing(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], mark: str
    ) -> StageCall:
        """What ``find`` gives where it turned out that the calls differ."""
        return self._reconciled(*self._asked(args, kwargs), mark)

    def _asked(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[ModuleCall | None, str, list[int | None]]:
        """The call, or why it is none, and the dim of rows of each input."""
        try:
            call = self._read(args, kwargs)
        except TensorOptError as caught:
            return None, str(caught), []
        return call, "", [self._plan.shares.rows_dim(name) for name in self._names_of(call)]

    def _names_of(self, call: ModuleCall | None) -> list[str]:
        return [] if call is None else self._names(call.kind)

    def _reconciled(
        self, call: ModuleCall | None, error: str, dims: Sequence[int | None], mark: str
    ) -> StageCall:
        """After the ranks have told each other what they call. Collective."""
        names, flags = self._names_of(call), self._own_flags
        kind = None if call is None else _without(call.kind, dims).digest_with(mark)
        text = error if call is None else call.kind.describe(names) + mark
        reports = self._agreement.exchange((kind, text, flags))
        self._check_reports(reports)
        self._comparison.check(self._agreement.exchange(self._comparison.take()))
        self._take_flags([of_rank for *_, of_rank in reports])
        assert call is not None
        own = replace(call, kind=replace(call.kind, trained=self._trained))
        shares = Shares.equal()
        if any(words != reports[0][1] for _, words, _ in reports):
            shares = Shares(tuple(gather(on_all_ranks(lambda: rows_of(own, dims)))))
        return self._with_rows(own, dims, shares)

    def _with_rows(self, call: ModuleCall, dims: Sequence[int | None], shares: Shares) -> StageCall:
        """What a call that all ranks make runs, of which they may have shares. Collective."""
        if not any(dim is not None for dim in dims):
            found = self._found(call)
            self._found_before.add(call.kind)
            return found
        if any(kind.requires_grad for kind in call.kind.shapes):
            raise TensorOptError(
                "an input requires a gradient, which stages do not give; detach it, or plan "
                "without stages"
            )
        whole = shares.gather(call, dims)
        if whole.kind not in self._checked:
            is_shared_out, calls = self._plan.shares.is_shared_out, self._comparison.calls
            check_inputs(self._names(call.kind), call.values, is_shared_out, calls)
            self._checked.add(whole.kind)
        found = self._found(replace(whole, kind=replace(whole.kind, gathered=False)))
        return replace(found, shares=shares)

    def _found(self, call: ModuleCall) -> StageCall:
        """What a call that all ranks make runs, with the whole batch."""
        if call.kind not in self._parts:
            part = self._made(call)
            # Of attributes those count, too, that the new graph has read.
            call = replace(call, kind=replace(call.kind, attributes=self._attributes.look()))
            self._parts[call.kind] = part
        part = self._parts[call.kind]
        whole = [None] * len(call.values)
        self._check.run(part.captured, call, whole, self._attributes.modules)
        return StageCall(part, call.values)

    def _check_reports(self, reports: Sequence[tuple[int | None, str, Flags]]) -> None:
        for rank, (kind, text, _) in enumerate(reports):
            if kind is None:
                raise TensorOptError(f"rank {rank}: {text}")
        share = "its share of" if self._plan.inputs == "sharded" else "the same"
        for rank, (kind, text, _) in enumerate(reports):
            if kind != reports[0][0]:
                raise TensorOptError(
                    f"the ranks call the module differently: rank 0 with {reports[0][1]}; rank "
                    f"{rank} with {text}; call it alike on all ranks: in the same mode, with "
                    f"{share} global batch, and with equal numbers, strings and flags"
                )

    def _names(self, kind: CallKind) -> list[str]:
        """Of the inputs, which lie alike in calls of one form."""
        if kind.spec not in self._input_names:
            places = list(range(len(kind.inputs)))  # in place of values
            args, kwargs = pytree.tree_unflatten(places, kind.spec)
            self._input_names[kind.spec] = self._maker.structure.input_names(args, kwargs)
        return self._input_names[kind.spec]

    @property
    def _own_flags(self) -> Flags:
        return {name: parameter.requires_grad for name, parameter in self._own.items()}

    def _take_flags(self, flags: Sequence[Flags]) -> None:
        """From now on the parameters of all stages are trained as these ranks say.

        Raises:
            TensorOptError: on every rank; some do not say the same of a parameter.
        """
        first: dict[str, int] = {}
        for rank, of_rank in enumerate(flags):
            for name, is_trained in of_rank.items():
                other = first.setdefault(name, rank)
                if flags[other][name] != is_trained:
                    raise TensorOptError(
                        f"requires_grad of parameter '{name}' is {flags[other][name]} on rank "
                        f"{other} and {is_trained} on rank {rank}; set it alike on all ranks that "
                        "have the parameter"
                    )
        known = {name: flags[rank][name] for name, rank in first.items()}
        module = self._maker.structure.module
        self._trained = tuple(known[name] for name, _ in module.named_parameters())
        self._flags = self._own_flags

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ModuleCall:
        """The call, with what is trained of the whole model, as far as this rank knows."""
        call = self._reader.read(args, kwargs)
        return replace(call, kind=replace(call.kind, trained=self._trained))

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
                on_all_ranks(lambda: self._watch(captured))
                own = self._plan, captured, maker.owned, maker.storage, maker.most_rows
                plan = from_first_rank(lambda: self._options.find(*own))
                return maker.part(plan, captured)
            except LostRanksError:
                raise
            except TensorOptError as error:
                raise TensorOptError(f"in stages, a call in {text}: {error}") from error

    def _watch(self, captured: CapturedModel) -> None:
        """Attributes that a graph has read are looked at in each call from now on."""
        found = captured.attributes
        self._attributes.watch(found.reads, (), found.fields)

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


def _without(kind: CallKind, dims: Sequence[int | None]) -> CallKind:
    """What calls have in common that differ in rows, and in what is trained."""
    return replace(kind.without_rows(dims), trained=())


def _alike(
    names: Sequence[str], dims: Sequence[int | None], call: ModuleCall | None
) -> dict[str, Any]:
    """The inputs that all ranks should have alike."""
    if call is None:
        return {}
    found = zip(names, call.values, dims, strict=True)
    return {name: value for name, value, dim in found if is_compared(value, dim is not None)}


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
