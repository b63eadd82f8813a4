"""What changes from one plan to another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.html_table import html_table
from tensoropt_torch.layer_names import folded_name, name_pattern
from tensoropt_torch.telling.description import Described, describe
from tensoropt_torch.units import format_bytes, format_seconds

# Said by the mesh and the name of the cluster, or too long to be read.
_NOT_COMPARED = ("cluster", "measured", "operators", "optimizer_state_bytes")


class Compared(Described, Protocol):
    """What is needed of a ``Plan`` to compare it."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def time_s(self) -> float: ...


@dataclass(frozen=True)
class Change:
    """An operator, a parameter or a setting, and what it is before and after."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class PlanDiff:
    """What changes from one plan to another one of the same model and mesh.

    Attributes:
        memory_bytes, time_s: per device and of a step, (before, after).
        settings: that differ.
        choices: operators and parameters that are split otherwise, in execution order.
        num_choices: how many there are to compare.
    """

    memory_bytes: tuple[float, float]
    time_s: tuple[float, float]
    settings: tuple[Change, ...]
    choices: tuple[Change, ...]
    num_choices: int

    @property
    def costs(self) -> tuple[Change, ...]:
        """Memory and step time in words."""
        return (
            Change("memory per device", *map(format_bytes, self.memory_bytes)),
            Change("step time", *map(format_seconds, self.time_s)),
        )

    @property
    def title(self) -> str:
        """How much differs, in words."""
        if not self.num_choices:
            return "Operators and parameters are split over other numbers of devices"
        return f"{len(self.choices)} of {self.num_choices} operators and parameters change"

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes."""
        return (*self.costs, *self.settings, *self.choices)

    @property
    def folded_choices(self) -> tuple[Change, ...]:
        """Choices of alike layers that change alike as one, with ``*`` for numbers that
        differ and how many there are."""
        groups = defaultdict(list)
        for change in self.choices:
            groups[name_pattern(change.name), change.before, change.after].append(change.name)
        return tuple(
            Change(_with_count(names), before, after)
            for (_, before, after), names in groups.items()
        )

    @property
    def folded_changes(self) -> tuple[Change, ...]:
        """All changes, with choices as in ``folded_choices``."""
        return (*self.costs, *self.settings, *self.folded_choices)

    def _repr_html_(self) -> str:
        rows = [(change.name, change.before, change.after) for change in self.folded_changes]
        return html_table(self.title, ("", "before", "after"), rows)


def _with_count(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{folded_name(names)} ({len(names)})"


def diff_of_plans(before: Compared, after: Compared) -> PlanDiff:
    """What changes from ``before`` to ``after``.

    Raises:
        TensorOptError: the plans are of different models, batches or meshes; or in other
            micro-batches, and have no model at hand.
    """
    _check(before, after)
    costs = (before.memory_bytes, after.memory_bytes), (before.time_s, after.time_s)
    pairs = _configs(before, after)
    choices = tuple(change for change in pairs if change.before != change.after)
    return PlanDiff(*costs, _settings(before, after), choices, len(pairs))


def _check(before: Compared, after: Compared) -> None:
    for what, one, other in (
        ("models or batches (fingerprints)", before.fingerprint, after.fingerprint),
        ("meshes", _mesh(before), _mesh(after)),
    ):
        if one != other:
            raise TensorOptError(
                f"the plans are for different {what}: {one} and {other}; compare plans of one "
                "model and batch on one number of devices"
            )


def _mesh(plan: Compared) -> str:
    return " x ".join(str(size) for size, _ in plan.settings.mesh_axes) or "1"


def _configs(before: Compared, after: Compared) -> list[Change]:
    """All of them, by name; without a model by place, since names depend on the capture."""
    one, other = before.choices.configs, after.choices.configs
    if before.captured is None or after.captured is None:
        if len(one) != len(other):
            raise TensorOptError(
                f"the plans choose {len(one)} and {len(other)} configs, which only the model tells "
                "apart; give it (Plan.with_model, --model)"
            )
        pairs = zip(one, other, strict=True)
        # Names with a colon are those of values.
        return [Change(name, a, b) for (name, a), (_, b) in pairs if ":" not in name]
    named = {choice.node: choice.config for choice in describe(after).choices}
    return [
        Change(choice.node, choice.config, named.get(choice.node, choice.config))
        for choice in describe(before).choices
    ]


def _settings(before: Compared, after: Compared) -> tuple[Change, ...]:
    one, other = comparable(before), comparable(after)
    return tuple(_changes(one, other))


def comparable(plan: Described) -> Mapping[str, Any]:
    """The settings of a plan that are compared."""
    record = asdict(plan.settings)
    short = {key: value for key, value in record.items() if key not in _NOT_COMPARED}
    return short | {
        "cluster": plan.settings.cluster["name"],
        "measured collectives": len(plan.settings.measured),
        "measured operators": len(plan.settings.operators),
        "constraints": ", ".join(map(str, plan.settings.constraints)) or "none",
    }


def _changes(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Change]:
    for key, value in one.items():
        if value != other[key]:
            yield Change(key, str(value), str(other[key]))
