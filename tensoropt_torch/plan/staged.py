"""Plans of models that are cut into stages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import InstanceOf

from tensoropt_torch import telling
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config.records import Bytes, Count, NotNegative, OneOrMore, Record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.html_table import html_table
from tensoropt_torch.plan.files import (
    is_staged,
    read_plan,
    staged_from_text,
    staged_to_text,
    write_plan,
)
from tensoropt_torch.plan.plan import Plan
from tensoropt_torch.space.settings import EXACT, REPLICATED, Guarantee, InputMode, InputShares
from tensoropt_torch.stages.cut import StageGraph, cut_graph
from tensoropt_torch.units import format_costs


@dataclass(frozen=True)
class StagePlan(Record):
    """The plan of one part of a model that is cut.

    Attributes:
        plan: of the part's graph, on the devices of one stage.
        storage: the layouts of parameters that other parts have as well, by name.
        first_draw: how many random calls the parts before it make.
        held_bytes: what a device has of values that cross its cuts, in all micro-batches.
    """

    plan: Plan
    storage: Mapping[str, str] = field(default_factory=dict)
    first_draw: Bytes = 0
    held_bytes: NotNegative = 0.0

    @property
    def memory_bytes(self) -> float:
        """Predicted memory of a device."""
        return self.plan.memory_bytes + self.held_bytes


@dataclass(frozen=True)
class StagedPlan(Record):
    """The plan of a model in stages.

    Attributes:
        fingerprint: of the whole graph.
        cuts: before which calls of the graph of a micro-batch it is cut, by number.
        parts: in the order of the graph; of S stages part p belongs to stage ``p % S``.
        stages: how many there are.
        micro_batches: of a step.
        schedule: in which order stages run them.
        shares: which inputs of a call each rank gets its own share of; the stages compute the
            batch of all ranks.
        time_s: predicted time of a step, as the actions of all stages take it.
        sent_s: between parts, what a micro-batch's values and its gradients take on their way.
        frontier: all points of the frontier it was picked from, as (bytes, seconds).
        guarantee: what holds for these.
        peaks: simulated peaks of a device of each stage (bytes), where it was picked by them.
        measured_s: what a step took, where it was run before it was picked.
        captured: the model, where that is at hand.
    """

    fingerprint: str
    cuts: tuple[Count, ...]
    parts: OneOrMore[StagePlan]
    stages: Count
    micro_batches: Count
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    time_s: NotNegative = 0.0
    sent_s: tuple[tuple[NotNegative, NotNegative], ...] = ()
    frontier: tuple[tuple[NotNegative, NotNegative], ...] = ()
    guarantee: Guarantee = EXACT
    peaks: tuple[Bytes, ...] = ()
    measured_s: NotNegative | None = None
    shares: InputShares = REPLICATED
    captured: InstanceOf[CapturedModel] | None = field(default=None, compare=False, repr=False)

    @property
    def chunks(self) -> int:
        """How many parts each stage has."""
        return len(self.parts) // self.stages

    @property
    def inputs(self) -> InputMode:
        """Whether a call is given this rank's share of the batch, or all of it."""
        return self.shares.mode

    @property
    def recomputes(self) -> bool:
        """Whether operators may run again in backward."""
        return any(part.plan.recomputes for part in self.parts)

    @property
    def memory_bytes(self) -> float:
        """Predicted memory of a device of the stage that needs most."""
        return max(self.memory_of_stages)

    @property
    def memory_of_stages(self) -> tuple[float, ...]:
        """Predicted memory of a device of each stage."""
        of_stages = [self.parts[stage :: self.stages] for stage in range(self.stages)]
        return tuple(sum(part.memory_bytes for part in parts) for parts in of_stages)

    @property
    def peak_bytes(self) -> int | None:
        """The simulated peak of the stage that needs most; None: it was not simulated."""
        return max(self.peaks, default=None)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those of the parts; with the graphs of these, if the model is at hand."""
        if self.captured is None:
            return tuple(part.plan for part in self.parts)
        _, graphs = self.cut(self.captured)
        return tuple(
            replace(part.plan, captured=graph.captured)
            for part, graph in zip(self.parts, graphs, strict=True)
        )

    def cut(self, captured: CapturedModel) -> tuple[CapturedModel, list[StageGraph]]:
        """The graph of a micro-batch of a model, and its parts. GPipe makes gradients after all
        forwards, of whatever is computed of the outputs.

        Raises:
            TensorOptError: it cannot be cut so; says what is in the way.
        """
        deferred = self.schedule == "gpipe"
        micro = micro_batched(captured, self.micro_batches, self.shares.whole, deferred=deferred)
        return micro, cut_graph(micro, self.cuts, deferred=deferred)

    def with_model(self, captured: CapturedModel) -> StagedPlan:
        """The same plan with the model at hand."""
        return replace(self, captured=captured)

    @property
    def devices_of_stage(self) -> int:
        """Of each."""
        return self.parts[0].plan.num_devices

    @property
    def num_devices(self) -> int:
        """Of all stages together."""
        return self.stages * self.devices_of_stage

    @property
    def strategy_hash(self) -> str:
        """Equal for equal strategies of a model, whatever they are predicted to cost."""
        return self._hash_with([part.plan.strategy_hash for part in self.parts])

    @property
    def hash(self) -> str:
        """Equal for equal plans."""
        return self._hash_with([part.plan.hash for part in self.parts])

    def _hash_with(self, hashes: Sequence[str]) -> str:
        own = (
            *(self.fingerprint, self.cuts, self.stages, self.micro_batches, self.schedule),
            self.shares,
        )
        parts = [
            (found, sorted(part.storage.items()), part.first_draw)
            for found, part in zip(hashes, self.parts, strict=True)
        ]
        return hashlib.sha256(repr((own, parts)).encode()).hexdigest()[:16]

    def summary(self) -> str:
        """How it is cut, what that costs, and what each stage does, in a few sentences.

        Raises:
            TensorOptError: the plan was loaded without its model (``with_model``).
        """
        return telling.details_of_stages(self).summary

    def diff(self, other: Plan | StagedPlan) -> telling.PlanDiff:
        """What changes from this plan to another one, with or without stages. Operators and
        parameters are compared where stages have as many devices.

        Raises:
            TensorOptError: the plans are of different models, batches or numbers of devices.
        """
        stages = other if isinstance(other, StagedPlan) else None
        return telling.diff_of_stages(self, other, (self, stages), (self.plans, other.plans))

    def check_model(self, captured: CapturedModel) -> None:
        """Raises TensorOptError if the plan was made for something else."""
        if self.fingerprint != captured.fingerprint:
            raise TensorOptError(
                f"the plan was made for another model or batch (fingerprint {self.fingerprint}); "
                f"this model with these inputs has fingerprint {captured.fingerprint}; plan again"
            )

    def to_json(self) -> str:
        """The plan as JSON text; ``from_json`` reads it."""
        record = asdict(self.without_models)
        del record["captured"]
        for part in record["parts"]:
            del part["plan"]["captured"]
        return staged_to_text(record)

    @property
    def without_models(self) -> StagedPlan:
        """The same plan as plain data."""
        parts = (replace(part, plan=replace(part.plan, captured=None)) for part in self.parts)
        return replace(self, parts=tuple(parts), captured=None)

    @staticmethod
    def from_json(text: str, where: str = "the text") -> StagedPlan:
        """The plan of a text that ``to_json`` has written.

        Raises:
            TensorOptError: naming ``where``; the text is no plan in stages, or not as it was
                written.
        """
        return staged_from_text(StagedPlan, text, where)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Raises:
            TensorOptError: the file cannot be written.
        """
        write_plan(path, self.to_json())

    @staticmethod
    def load(path: str | Path) -> StagedPlan:
        """Read a plan that ``save`` wrote."""
        return StagedPlan.from_json(read_plan(path), f"plan file '{path}'")

    def __repr__(self) -> str:
        return telling.stages_in_words(self)

    def __str__(self) -> str:
        """A line for each stage."""
        lines = [f"{telling.stages_in_words(self)}:"]
        for row in telling.stage_rows(self):
            costs = format_costs(row.memory_bytes, row.alone_s)
            lines.append(f"stage {row.number}, {'; '.join(row.layers)}: {costs}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [row.cells for row in telling.stage_rows(self)]
        return html_table(telling.stages_in_words(self), telling.COLUMNS, rows)


def load_any(path: str | Path) -> Plan | StagedPlan:
    """Read a plan of either kind.

    Raises:
        TensorOptError: the file cannot be read, or has none.
    """
    return any_of_json(read_plan(path), f"plan file '{path}'")


def any_of_json(text: str, where: str = "the text") -> Plan | StagedPlan:
    """The plan of either kind of a text that ``to_json`` has written.

    Raises:
        TensorOptError: naming ``where``; the text has none.
    """
    if is_staged(text):
        return StagedPlan.from_json(text, where)
    return Plan.from_json(text, where)
