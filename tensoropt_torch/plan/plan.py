"""Plans: a frontier point made executable, and what it was made for."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pydantic import InstanceOf

from tensoropt_torch import _C
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.config.records import Bytes, Count, NotNegative, Record, parse_record
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.html_table import html_table
from tensoropt_torch.plan.seal import HASHES, check_seal, sealed
from tensoropt_torch.space.choices import Choices
from tensoropt_torch.space.settings import EXACT, Guarantee, InputMode, Settings
from tensoropt_torch.telling.details import details_of
from tensoropt_torch.telling.diff import PlanDiff, diff
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

# Of the file. Configs are labels, so that it does not change with those that rules give.
FORMAT_VERSION = 8

# A strategy adds its costs up in another order than the search.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class VariantStrategy(Record):
    """The strategy of another graph of a plan's model (another mode, other shapes), with
    parameters stored as the plan says. Fields as in ``Plan``; ``gathered``: every rank gets
    the whole batch, though the plan is for a share on each; ``micro_batches``: of a step."""

    fingerprint: str
    memory_bytes: NotNegative
    time_s: NotNegative
    choices: Choices
    gathered: bool = False
    micro_batches: Count = 1

    @property
    def key(self) -> tuple[str, bool, int]:
        """What it is for."""
        return self.fingerprint, self.gathered, self.micro_batches

    @staticmethod
    def of(
        planner: _C.Planner,
        captured: CapturedModel,
        strategy: _C.Strategy,
        gathered: bool = False,
    ) -> VariantStrategy:
        """A strategy that was found by ``planner`` for the graph."""
        return VariantStrategy(
            captured.fingerprint,
            strategy.memory,
            strategy.time,
            Choices.of(planner, strategy),
            gathered,
            captured.micro_batches,
        )


@dataclass(frozen=True)
class Plan(Record):
    """One strategy of one model on one mesh.

    ``memory_bytes`` is the predicted memory per device (states and what is kept
    for backward; temporaries are not counted), ``time_s`` the predicted
    time of a training step. ``choices`` are the strategy. ``frontier`` are all points of the
    frontier it was picked from, as (memory_bytes, time_s), and ``guarantee`` says what holds
    for them. ``variants`` are strategies of other graphs of the model. ``captured`` is the
    model it was made for, where that is at hand; it is not saved. ``peak_bytes`` is the
    simulated peak, where the plan was picked by it, and ``measured_s`` what a step took, where
    plans were run before this one was picked.
    """

    settings: Settings
    fingerprint: str
    memory_bytes: NotNegative
    time_s: NotNegative
    choices: Choices
    frontier: tuple[tuple[NotNegative, NotNegative], ...] = ()
    guarantee: Guarantee = EXACT
    peak_bytes: Bytes | None = None
    measured_s: NotNegative | None = None
    variants: tuple[VariantStrategy, ...] = ()
    captured: InstanceOf[CapturedModel] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(
        planner: _C.Planner,
        settings: Settings,
        captured: CapturedModel,
        strategy: _C.Strategy,
        frontier: tuple[tuple[float, float], ...] = (),
        guarantee: Guarantee = EXACT,
    ) -> Plan:
        """The plan of a strategy that ``planner`` found for ``settings``."""
        return Plan(
            settings,
            captured.fingerprint,
            strategy.memory,
            strategy.time,
            Choices.of(planner, strategy),
            frontier,
            guarantee,
            captured=captured,
        )

    def with_model(self, captured: CapturedModel) -> Plan:
        """The same plan with the model at hand, in the micro-batches of the plan."""
        settings = self.settings
        captured = micro_batched(captured, settings.micro_batches, settings.whole_inputs)
        return replace(self, captured=captured)

    def diff(self, other: Plan) -> PlanDiff:
        """What changes from this plan to another one.

        Raises:
            TensorOptError: the plans are of different models, batches or meshes; or in other
                micro-batches, and have no model at hand.
        """
        model = self.captured or other.captured
        if model is None:
            return diff(self, other)
        return diff(self.with_model(model), other.with_model(model))

    def summary(self) -> str:
        """What it does, in a few sentences: what splits the work of operators, how much of the
        parameters a device holds and gathers, what runs again in backward.

        Raises:
            TensorOptError: the plan was loaded without its model (``with_model``).
        """
        return details_of(self).summary

    def of_variant(self, captured: CapturedModel, strategy: VariantStrategy) -> Plan:
        """The plan of another graph of the model."""
        return replace(
            self,
            settings=self.settings.of_variant(strategy.gathered, strategy.micro_batches),
            fingerprint=strategy.fingerprint,
            memory_bytes=strategy.memory_bytes,
            time_s=strategy.time_s,
            choices=strategy.choices,
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

    def strategy(self, planner: _C.Planner, check: bool = False) -> _C.Strategy:
        """The strategy in its space (``make_planner``), for the C++ core. ``check`` looks at all
        values on their way to consumers, which takes longer than the rest.

        Raises:
            TensorOptError: the space does not have it.
        """
        try:
            strategy = self.choices.strategy(planner)
            if check:
                planner.check_edges(strategy)
            return strategy
        except TensorOptError as error:
            raise TensorOptError(
                f"the plan does not fit the strategies of this model: {error}; it was made by "
                "another version of tensoropt_torch or changed by hand: plan again"
            ) from error

    def __repr__(self) -> str:
        costs = format_costs(self.memory_bytes, self.time_s)
        measured = (
            "" if self.measured_s is None else f", {format_seconds(self.measured_s)} measured"
        )
        return f"Plan({self.settings.where}: {costs}{measured}; {self.origin})"

    def _repr_html_(self) -> str:
        return html_table("Plan", (), self.facts())

    @property
    def origin(self) -> str:
        """Which point of the frontier it is, and what holds for that."""
        if not self.frontier:
            return f"of no frontier, {self.guarantee}"
        points = sorted(self.frontier)
        index = bisect_right(points, (self.memory_bytes * (1 + _ROUNDING), math.inf)) - 1
        time_s = points[index][1] if index >= 0 else 0.0
        if self.time_s > time_s * (1 + _ROUNDING):
            more = self.time_s / points[-1][1] - 1
            return f"not on the frontier, predicted {more:.0%} above the fastest point"
        return f"point {index} of {len(points)}, {self.guarantee}"

    def facts(self) -> Iterator[tuple[str, str]]:
        """What it is for and what it costs, as names and values."""
        settings = self.settings
        yield "devices", settings.where
        yield "step time", format_seconds(self.time_s)
        if self.measured_s is not None:
            yield "measured step time", format_seconds(self.measured_s)
        yield "memory per device", format_bytes(self.memory_bytes)
        if self.peak_bytes is not None:
            yield "simulated peak", format_bytes(self.peak_bytes)
        yield "frontier", self.origin
        yield "inputs", settings.inputs_in_words
        yield "overlap", "yes" if settings.overlap else "no"
        if settings.micro_batches > 1:
            yield "micro-batches", str(settings.micro_batches)
        if settings.wishes:
            yield "wishes", ", ".join(map(str, settings.wishes))
        yield "measured collectives", str(len(settings.measured))
        yield "measured operators", str(len(settings.operators))
        yield "model", self.fingerprint

    @property
    def num_devices(self) -> int:
        return self.settings.num_devices

    @property
    def inputs(self) -> InputMode:
        return self.settings.inputs

    @property
    def strategy_hash(self) -> str:
        """Equal for equal strategies of a model, whatever they are predicted to cost."""
        count = self.settings.micro_batches
        text = json.dumps([count, self.choices.labels, self.choices.kept])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def hash(self) -> str:
        """Equal for equal plans."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The plan as JSON text; ``from_json`` reads it."""
        record = asdict(replace(self, captured=None))
        del record["captured"]
        return json.dumps({"format_version": FORMAT_VERSION, **sealed(record)}, sort_keys=True)

    @staticmethod
    def from_json(text: str, where: str = "the text") -> Plan:
        """Raises TensorOptError, naming ``where``, if the text is no plan of this version, or not
        as it was written."""
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise _no_plan(where, f"it is no JSON ({error})") from error
        if not isinstance(record, dict) or "format_version" not in record:
            raise _no_plan(where, "it has no format_version")
        version = record.pop("format_version")
        if version != FORMAT_VERSION:
            raise TensorOptError(
                f"{where} has format version {version}, this version of tensoropt_torch reads "
                f"{FORMAT_VERSION}; plan again"
            )
        hashes = record.pop(HASHES, None)  # files of earlier versions have none
        plan = parse_record(Plan, record, where)
        if hashes is not None:
            check_seal(record, hashes, where)
        return plan

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Raises:
            TensorOptError: the file cannot be written.
        """
        try:
            Path(path).write_text(self.to_json())
        except OSError as error:
            raise TensorOptError(f"plan file '{path}' cannot be written: {error}") from error

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan that ``save`` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TensorOptError(
                f"plan file '{path}' cannot be read: {error}; write one with Plan.save"
            ) from error
        return Plan.from_json(text, f"plan file '{path}'")


def _no_plan(where: str, why: str) -> TensorOptError:
    return TensorOptError(f"{where} is not a plan: {why}; write one with Plan.save")
