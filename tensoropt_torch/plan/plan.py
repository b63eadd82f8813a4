"""Plans: a frontier point made executable, and what it was made for.

A plan is data. What it does, how it differs from another one and how it is shown are told by
``telling``, and ``batches`` makes the graph of its micro-batches; the methods for that hand over.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import InstanceOf

from tensoropt_torch import _C, telling
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config.records import Bytes, NotNegative, Record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.plan.files import from_text, read_plan, to_text, write_plan
from tensoropt_torch.plan.parts import Parts, PlanPart, VariantStrategy, only_part
from tensoropt_torch.space.choices import Choices
from tensoropt_torch.space.settings import EXACT, Guarantee, InputMode, InputShares, Settings


@dataclass(frozen=True)
class Plan(Record):
    """One strategy of one model on one mesh.

    ``parts`` are its parts, of which there is one: the strategy of the whole model with what it
    costs. ``frontier`` are all points of the
    frontier it was picked from, as (memory_bytes, time_s), and ``guarantee`` says what holds
    for them. ``variants`` are strategies of other graphs of the model. ``captured`` is the
    model it was made for, where that is at hand; it is not saved. ``peak_bytes`` is the
    simulated peak, where the plan was picked by it, and ``measured_s`` what a step took, where
    plans were run before this one was picked.
    """

    settings: Settings
    parts: Parts
    frontier: tuple[tuple[NotNegative, NotNegative], ...] = ()
    guarantee: Guarantee = EXACT
    peak_bytes: Bytes | None = None
    measured_s: NotNegative | None = None
    variants: tuple[VariantStrategy, ...] = ()
    captured: InstanceOf[CapturedModel] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(
        space: _C.SearchSpace,
        settings: Settings,
        captured: CapturedModel,
        strategy: _C.Strategy,
        frontier: tuple[tuple[float, float], ...] = (),
        guarantee: Guarantee = EXACT,
    ) -> Plan:
        """The plan of a strategy found in ``space`` for ``settings``."""
        part = PlanPart.of(space, captured, strategy)
        return Plan(settings, (part,), frontier, guarantee, captured=captured)

    @property
    def part(self) -> PlanPart:
        """The part that is all of the model."""
        return only_part(self.parts)

    def with_part(self, **changes: Any) -> Plan:
        """The same plan with other fields of its part."""
        return replace(self, parts=(replace(self.part, **changes),))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model's graph."""
        return self.part.fingerprint

    @property
    def memory_bytes(self) -> float:
        """Predicted memory per device."""
        return self.part.memory_bytes

    @property
    def time_s(self) -> float:
        """Predicted time of a training step."""
        return self.part.time_s

    @property
    def choices(self) -> Choices:
        """The strategy."""
        return self.part.choices

    def with_model(self, captured: CapturedModel) -> Plan:
        """The same plan with the model at hand, in the micro-batches of the plan."""
        settings = self.settings
        captured = micro_batched(captured, settings.micro_batches, settings.whole_inputs)
        return replace(self, captured=captured)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those of the parts that run, as of a plan in stages."""
        return (self,)

    def diff(self, other: Plan | telling.ComparedStages) -> telling.PlanDiff:
        """What changes from this plan to another one.

        Raises:
            TensorOptError: the plans are of different models, batches or meshes; or in other
                micro-batches, and have no model at hand.
        """
        if not isinstance(other, Plan):
            return telling.diff_of_stages(self, other, (None, other), (self.plans, other.plans))
        model = self.captured or other.captured
        if model is None:
            return telling.diff_of_plans(self, other)
        return telling.diff_of_plans(self.with_model(model), other.with_model(model))

    def summary(self) -> str:
        """What it does, in a few sentences: what splits the work of operators, how much of the
        parameters a device holds and gathers, what runs again in backward.

        Raises:
            TensorOptError: the plan was loaded without its model (``with_model``).
        """
        return telling.details_of(self).summary

    def of_variant(self, captured: CapturedModel, strategy: VariantStrategy) -> Plan:
        """The plan of another graph of the model."""
        return replace(
            self,
            settings=self.settings.of_variant(strategy.gathered, strategy.micro_batches),
            parts=strategy.parts,
            frontier=(),
            peak_bytes=None,
            measured_s=None,
            variants=(),
            captured=captured,
        )

    def check_model(self, captured: CapturedModel) -> None:
        """Raises TensorOptError if the plan was made for something else."""
        if self.fingerprint != captured.fingerprint:
            raise TensorOptError(
                f"the plan was made for another model or batch (fingerprint {self.fingerprint}); "
                f"this model with these inputs has fingerprint {captured.fingerprint}; plan again "
                "for it, or register the same rules (register_rule) as for the plan"
            )

    def __repr__(self) -> str:
        return telling.in_one_line(self)

    def _repr_html_(self) -> str:
        return telling.as_html(self)

    @property
    def origin(self) -> str:
        """Which point of the frontier it is, and what holds for that."""
        return telling.origin_of(self)

    @property
    def num_devices(self) -> int:
        return self.settings.num_devices

    @property
    def inputs(self) -> InputMode:
        return self.settings.inputs

    @property
    def shares(self) -> InputShares:
        """Which inputs each rank gets its own share of."""
        return self.settings.shares

    @property
    def micro_batches(self) -> int:
        """Of a step."""
        return self.settings.micro_batches

    @property
    def recomputes(self) -> bool:
        """Whether operators may run again in backward."""
        return self.settings.recompute

    @property
    def strategy_hash(self) -> str:
        """Equal for equal strategies of a model, whatever they are predicted to cost."""
        chosen = [(part.choices.labels, part.choices.kept) for part in self.parts]
        text = json.dumps([self.settings.micro_batches, *(one for pair in chosen for one in pair)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def hash(self) -> str:
        """Equal for equal plans."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The plan as JSON text; ``from_json`` reads it."""
        record = asdict(replace(self, captured=None))
        del record["captured"]
        return to_text(record)

    @staticmethod
    def from_json(text: str, where: str = "the text") -> Plan:
        """The plan of a text that ``to_json`` of this version, or of an earlier one, has written.

        Raises:
            TensorOptError: naming ``where``; the text is no plan of a format that is read, or
                not as it was written.
        """
        return from_text(Plan, text, where)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Raises:
            TensorOptError: the file cannot be written.
        """
        write_plan(path, self.to_json())

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan that ``save`` wrote."""
        return Plan.from_json(read_plan(path), f"plan file '{path}'")
