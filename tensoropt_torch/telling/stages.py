"""What a plan in stages does: what each stage is, and the figures of a device of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.telling.description import Described, PlanDescription
from tensoropt_torch.telling.details import PlanDetails, Storage, details_of
from tensoropt_torch.telling.diff import Change, PlanDiff, comparable
from tensoropt_torch.units import format_bytes, format_seconds

HELD = "values that cross cuts"
WAITS_FOR_STAGES = "waiting for other stages"


class DescribedPart(Described, Protocol):
    """What is needed of the plan of a part."""

    @property
    def time_s(self) -> float: ...


class DescribedStages(Protocol):
    """What is needed of a ``StagedPlan``."""

    @property
    def plans(self) -> Sequence[DescribedPart]: ...
    @property
    def stages(self) -> int: ...
    @property
    def devices_of_stage(self) -> int: ...
    @property
    def micro_batches(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def measured_s(self) -> float | None: ...
    @property
    def cuts(self) -> Sequence[int]: ...
    @property
    def time_s(self) -> float: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def memory_of_stages(self) -> Sequence[float]: ...
    @property
    def peaks(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class StageRow:
    """One stage.

    Attributes:
        layers: the modules with parameters, of each of its parts from which to which.
        alone_s: what it computes and communicates inside of itself, in a step.
        memory_bytes: of a device, as the search counts it.
        peak_bytes: simulated; None: it was not.
        in_flight: of each of its parts, how many micro-batches wait for their backward, at most.
        waits: the share of the step in which it does neither.
    """

    number: int
    layers: tuple[str, ...]
    devices: int
    alone_s: float
    memory_bytes: float
    peak_bytes: int | None
    in_flight: tuple[int, ...]
    waits: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As ``COLUMNS`` name them."""
        return (
            str(self.number),
            "; ".join(self.layers),
            str(self.devices),
            format_seconds(self.alone_s),
            format_bytes(self.memory_bytes),
            "-" if self.peak_bytes is None else format_bytes(self.peak_bytes),
            ", ".join(map(str, self.in_flight)),
            f"{self.waits:.0%}",
        )


COLUMNS = (
    *("stage", "layers", "devices", "alone", "memory per device", "simulated peak"),
    *("in flight", "waits"),
)


def stage_rows(plan: DescribedStages) -> list[StageRow]:
    """Of all stages; needs no model."""
    found = []
    for number in range(plan.stages):
        parts = plan.plans[number :: plan.stages]
        alone_s = sum(part.time_s for part in parts)
        found.append(
            StageRow(
                number,
                tuple(_layers(part.choices.configs) for part in parts),
                plan.devices_of_stage,
                alone_s,
                plan.memory_of_stages[number],
                plan.peaks[number] if plan.peaks else None,
                tuple(part.settings.in_flight for part in parts),
                1 - alone_s / plan.time_s if plan.time_s > 0 else 0.0,
            )
        )
    return found


def _layers(configs: Sequence[tuple[str, str]]) -> str:
    """From the first to the last module with parameters."""
    names = [name.rpartition(".")[0] for name, _ in configs if name.endswith((".weight", ".bias"))]
    if not names:
        return "-"
    return names[0] if names[0] == names[-1] else f"{names[0]} to {names[-1]}"


def stages_in_words(plan: DescribedStages) -> str:
    """How a model is cut, and what that costs, in one sentence."""
    waits = min(row.waits for row in stage_rows(plan))
    micro = f"{plan.micro_batches} micro-batches" if plan.micro_batches > 1 else "one micro-batch"
    devices = f"{plan.devices_of_stage} devices" if plan.devices_of_stage > 1 else "one device"
    measured = "" if plan.measured_s is None else f", which took {format_seconds(plan.measured_s)}"
    return (
        f"{plan.stages} stages of {devices} each run {micro} in turn ({plan.schedule}), and the "
        f"one that has most to do waits for {waits:.0%} of a step{measured}"
    )


@dataclass(frozen=True)
class StagedDetails(PlanDetails):
    """A plan in stages in figures. Memory is that of the stage that needs most, and time that of
    the one that has most to do; the rest is of all parts together.

    Attributes:
        rows: of the stages.
        parts: of the graph, in its order.
        cut: how it is cut, in a sentence.
    """

    rows: tuple[StageRow, ...] = ()
    parts: tuple[PlanDetails, ...] = ()
    cut: str = ""

    @property
    def summary(self) -> str:
        """How the model is cut, then what each part does."""
        sentences = [f"{self.cut}."]
        for number, part in enumerate(self.parts):
            row = self.rows[number % len(self.rows)]
            layers = row.layers[number // len(self.rows)]
            sentences.append(f"Stage {row.number} ({layers}): {part.summary}")
        return " ".join(sentences)


def _with_held(of_parts: dict[str, float], memory_bytes: float) -> dict[str, float]:
    """With what a stage has besides its parts, of so much memory in all."""
    held = memory_bytes - sum(of_parts.values())
    return of_parts | ({HELD: held} if held > 0.5 else {})


def details_of_stages(plan: DescribedStages) -> StagedDetails:
    """Of a plan whose parts have their graphs.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    parts = tuple(details_of(part) for part in plan.plans)
    rows = stage_rows(plan)
    of_stages = [parts[row.number :: plan.stages] for row in rows]
    largest = max(rows, key=lambda row: row.memory_bytes).number
    busiest = max(rows, key=lambda row: row.alone_s)
    time = _sums(part.time for part in of_stages[busiest.number])
    again = _sums(part.run_again for part in of_stages[busiest.number])
    waits_s = max(0.0, plan.time_s - busiest.alone_s)
    return StagedDetails(
        _together([part.description for part in parts]),
        _stored([storage for part in parts for storage in part.storage]),
        tuple(one for part in parts for one in part.collectives),
        _with_held(_sums(part.memory for part in of_stages[largest]), rows[largest].memory_bytes),
        {**time, WAITS_FOR_STAGES: waits_s},
        {name: seconds for part in parts for name, seconds in part.operator_time.items()},
        of_stages[busiest.number][0].work,
        dict(sorted(again.items(), key=lambda one: -one[1])),
        _sums(part.whole for part in of_stages[largest]),
        tuple(role for part in parts for role in part.roles),
        tuple(rows),
        parts,
        stages_in_words(plan),
    )


def _sums(several: Any) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for figures in several:
        for name, figure in figures.items():
            total[name] += figure
    return dict(total)


def _together(parts: Sequence[PlanDescription]) -> PlanDescription:
    kept: Counter[str] = Counter()
    for part in parts:
        kept.update(part.kept)
    return PlanDescription(
        parts[0].sizes,
        tuple(choice for part in parts for choice in part.choices),
        sum(part.num_edges for part in parts),
        sum(part.num_resharded for part in parts),
        dict(sorted(kept.items())),
        sum(part.num_recomputed for part in parts),
        parts[0].micro_batches,
        sum(part.num_held for part in parts),
        sum(part.num_summed for part in parts),
        sum(part.num_operators for part in parts),
    )


def _stored(several: Sequence[Storage]) -> tuple[Storage, ...]:
    """Of one layout together."""
    found: dict[str, Storage] = {}
    for one in several:
        other = found.get(one.layout)
        found[one.layout] = (
            one
            if other is None
            else Storage(
                one.layout,
                (*other.names, *one.names),
                other.num_bytes + one.num_bytes,
                other.device_bytes + one.device_bytes,
            )
        )
    return tuple(sorted(found.values(), key=lambda storage: -storage.num_bytes))


class ComparedPlan(Protocol):
    """What is needed of a plan of either kind to compare it with one of the other; ``plans`` are
    those of the parts, of a plan without stages itself."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def num_devices(self) -> int: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def time_s(self) -> float: ...


class ComparedStages(DescribedStages, ComparedPlan, Protocol):
    """What is needed of a ``StagedPlan`` to compare it."""


# Of settings of parts, what their stages say.
_SAID = (
    *("mesh_axes", "in_flight", "micro_batches"),
    *("whole_inputs", "input_dims", "row_axes", "inputs"),
)


def diff_of_stages(
    before: ComparedPlan,
    after: ComparedPlan,
    stages: tuple[DescribedStages | None, DescribedStages | None],
    parts: tuple[Sequence[DescribedPart], Sequence[DescribedPart]],
) -> PlanDiff:
    """What changes from a plan to another one, of which one at least is in stages: ``stages`` say
    it, and ``parts`` are those of both.

    Raises:
        TensorOptError: the plans are of different models, batches or numbers of devices.
    """
    for what, one, other in (
        ("models or batches (fingerprints)", before.fingerprint, after.fingerprint),
        ("numbers of devices", before.num_devices, after.num_devices),
    ):
        if one != other:
            raise TensorOptError(
                f"the plans are for different {what}: {one} and {other}; compare plans of one "
                "model and batch on one number of devices"
            )
    facts = [_facts(*pair) for pair in zip(stages, parts, strict=True)]
    settings = tuple(
        Change(name, facts[0].get(name, "-"), facts[1].get(name, "-"))
        for name in {**facts[0], **facts[1]}
        if facts[0].get(name) != facts[1].get(name)
    )
    sizes = [[size for size, _ in own[0].settings.mesh_axes] for own in parts]
    shared = _choices(*parts) if sizes[0] == sizes[1] else []
    return PlanDiff(
        (before.memory_bytes, after.memory_bytes),
        (before.time_s, after.time_s),
        settings,
        tuple(change for change in shared if change.before != change.after),
        len(shared),
    )


def _facts(stages: DescribedStages | None, parts: Sequence[DescribedPart]) -> dict[str, str]:
    settings = parts[0].settings
    found = {
        "stages": str(stages.stages if stages else 1),
        "devices of a stage": str(settings.num_devices),
        "micro-batches": str(settings.micro_batches),
    }
    if stages is not None:
        found["schedule"] = stages.schedule
        for row in stage_rows(stages):
            found[f"layers of stage {row.number}"] = "; ".join(row.layers)
    said = {name: value for name, value in comparable(parts[0]).items() if name not in _SAID}
    return found | {name: str(value) for name, value in said.items()}


def _choices(before: Sequence[DescribedPart], after: Sequence[DescribedPart]) -> list[Change]:
    """Of what both have, by name; those with a colon are of values."""
    one, other = (
        {name: label for part in parts for name, label in part.choices.configs}
        for parts in (before, after)
    )
    return [
        Change(name, label, other[name])
        for name, label in one.items()
        if name in other and ":" not in name
    ]
