"""What calls of a module run, made for a plan; and for another one on the same storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from tensoropt_torch.batches import batch_rows
from tensoropt_torch.calls.attribute_watch import AttributeWatch
from tensoropt_torch.calls.call_kind import CallReader
from tensoropt_torch.calls.capture_check import CaptureCheck
from tensoropt_torch.emit.compiler import CompileOptions
from tensoropt_torch.emit.rank import RankPart
from tensoropt_torch.frontend import ModelStructure
from tensoropt_torch.module.context import RankContext
from tensoropt_torch.module.programs import ModulePrograms
from tensoropt_torch.module.storage import ModuleStorage
from tensoropt_torch.module.variant import Variant
from tensoropt_torch.module.variant_maker import VariantMaker, emit_variant
from tensoropt_torch.module.variants import VariantOptions, Variants
from tensoropt_torch.runtime.agreement import CallAgreement


@dataclass(frozen=True)
class ProgramMaker:
    """Makes programs for a model, whatever their plan.

    Attributes:
        structure: the model, to be captured again.
        root: what stands for it, with what the rank has of it.
        attributes: of the model, which its graphs read.
        context: what the rank runs on.
        options: which variants programs make; None: none.
        check: compares the first graph that is trained with the module.
        one_process_random: as of ``parallelize``.
        compiler: compiles the graphs; None: nothing does.
    """

    structure: ModelStructure
    root: nn.Module
    attributes: AttributeWatch
    context: RankContext
    options: VariantOptions | None
    check: CaptureCheck
    one_process_random: bool
    compiler: CompileOptions | None

    def on(self, context: RankContext) -> ProgramMaker:
        """For programs on another mesh."""
        return self if context is self.context else replace(self, context=context)

    def base(self, part: RankPart, tables: Mapping[str, torch.Tensor]) -> Variant:
        """The graph of the plan. Collective.

        Args:
            tables: what was computed at capture, by name; read in calls only.
        """
        base = emit_variant(
            part,
            self.context,
            self.root,
            tables,
            one_process_random=self.one_process_random,
            compiler=self.compiler,
        )
        base.written_on(self.attributes.modules)
        return base

    def programs(
        self, part: RankPart, base: Variant, storage: ModuleStorage, seeds: torch.Generator
    ) -> ModulePrograms:
        """Those of the plan, whose graph is ``base``. Collective.

        Args:
            seeds: what the seeds of steps are drawn from.
        """
        return ModulePrograms(base, storage, seeds, self._variants(part, base))

    def _variants(self, part: RankPart, base: Variant) -> Variants | None:
        options, plan, captured = self.options, part.plan, part.captured
        if options is None:
            return None
        count, whole_inputs = plan.settings.micro_batches, plan.settings.whole_inputs
        maker = VariantMaker(
            plan,
            self.structure,
            self.context,
            part.storage,
            self.root,
            find=options.find,
            one_process_random=self.one_process_random,
            most_rows=None if count == 1 else batch_rows(captured, whole_inputs),
            compiler=self.compiler,
            attributes=self.attributes,
        )
        modules, parameters = list(self.root.modules()), list(self.root.parameters())
        device, context = self.context.device, captured.context
        reader = CallReader(modules, parameters, device, context, self.attributes)
        return Variants(maker, base, reader, options, self.check, self._agreement)

    @cached_property
    def _agreement(self) -> CallAgreement:
        """Of all programs, one after the other, since each has a process group."""
        return CallAgreement(self.context.groups.create_control())
