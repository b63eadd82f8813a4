"""Why a plan is what it is: the decisions that matter, what the best alternatives to them cost,
and what would have to change for another plan to be picked."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tensoropt_torch import _C
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.config.cluster import Cluster
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.layer_names import folded_name, name_pattern
from tensoropt_torch.plan import Plan, Settings, StagedPlan
from tensoropt_torch.planner.constraint_costs import ConstraintCosts, constraint_costs
from tensoropt_torch.planner.explanation import PARAMETER
from tensoropt_torch.planner.points import pick_index
from tensoropt_torch.planner.search_settings import SearchSettings
from tensoropt_torch.space.allowed import allowed_configs
from tensoropt_torch.space.search_space import make_space, step_time_s
from tensoropt_torch.telling.collectives import num_shards
from tensoropt_torch.telling.description import described, model_at_hand, shown_config
from tensoropt_torch.telling.diff import PlanDiff
from tensoropt_torch.units import format_bytes, format_duration, format_seconds

# A decision that changes memory or time by less does not matter.
NOTEWORTHY = 0.01
# Of operators and of parameters: of so many groups, those with the most work or bytes, the
# alternatives are searched.
MOST_GROUPS = 8
# How many times as fast the network might be.
NETWORK_FACTORS = (2.0, 0.5)
# Decisions that the text names.
MOST_PRINTED = 6
_ROUNDING = 1e-9
_SHOWN = 3  # names in a sentence


@dataclass(frozen=True)
class Decision:
    """Operators or parameters that the plan splits alike, and the best strategies in which all
    of them are split otherwise: parameters into another number of parts, operators by other
    dims. All else is searched anew.

    Attributes:
        names: those that differ in numbers only, in execution order.
        operator: or ``parameter``.
        config: what the plan does with them.
        in_memory: the fastest of these strategies that needs no more memory than the plan;
            None: none does.
        in_time: the one that needs the least memory of those that are as fast as the plan; None:
            none is.
        least_memory_bytes: the least memory of these strategies, per device.
        instead: what ``in_memory`` does with the names, else ``in_time``; the most frequent.
    """

    names: tuple[str, ...]
    operator: str
    config: str
    in_memory: Plan | None
    in_time: Plan | None
    least_memory_bytes: float
    instead: str

    def sentence(self, plan: Plan) -> str:
        """The decision in words, with what it saves."""
        what = PARAMETER if self.operator == PARAMETER else self.operator
        is_split = "stored as" if self.operator == PARAMETER else "split as"
        number = f"{len(self.names)} times " if len(self.names) > 1 else ""
        text = f"{folded_name(self.names)} ({number}{what}) is {is_split} {self.config}."
        if self.in_memory is None:
            more = format_bytes(self.least_memory_bytes - plan.memory_bytes)
            text += f" Otherwise at least {more} more per device are needed"
        else:
            more_s = self.in_memory.time_s - plan.time_s
            text += (
                f" Otherwise ({self.instead}) a step takes {_signed_seconds(more_s)} "
                f"({more_s / plan.time_s:+.1%}) in the same memory"
            )
        if self.in_time is None:
            return f"{text}; nothing is as fast."
        more_bytes = self.in_time.memory_bytes - plan.memory_bytes
        if more_bytes <= NOTEWORTHY * plan.memory_bytes:
            return f"{text}."
        return f"{text}; to be as fast takes {format_bytes(more_bytes)} more per device."


@dataclass(frozen=True)
class MemoryChange:
    """Another point of the plan's frontier, which is picked from this memory limit on, and the
    memory and time that it takes."""

    memory_bytes: float
    time_s: float

    def sentence(self, plan: Plan | StagedPlan) -> str:
        more = self.memory_bytes - plan.memory_bytes
        change = (
            f"{_signed_seconds(self.time_s - plan.time_s)} ({self.time_s / plan.time_s - 1:+.1%})"
        )
        direction = "more" if more > 0 else "less"
        return (
            f"With {format_bytes(abs(more))} {direction} per device "
            f"({format_bytes(self.memory_bytes)}) a step takes {change}."
        )


def memory_changes(plan: Plan | StagedPlan) -> Iterator[MemoryChange]:
    """The nearest points of a plan's frontier that are noteworthy, and the fastest of all."""
    points = sorted(plan.frontier)
    less = [p for p in points if p[0] < plan.memory_bytes * (1 - NOTEWORTHY)]
    faster = [p for p in points if p[1] < plan.time_s * (1 - NOTEWORTHY)]
    more = [p for p in faster if p[0] > plan.memory_bytes]
    for point in dict.fromkeys([*less[-1:], *more[:1], *more[-1:]]):
        yield MemoryChange(*point)


@dataclass(frozen=True)
class NetworkChange:
    """What is picked for the plan's memory if all communication is ``factor`` times as fast.

    Attributes:
        time_s: of the plan itself then.
        best: the plan that is picked then.
        diff: from the plan to it.
    """

    factor: float
    time_s: float
    best: Plan
    diff: PlanDiff

    def sentence(self) -> str:
        gain = 1 - self.best.time_s / self.time_s
        text = f"With a network {self.factor:g} times as fast this plan takes "
        text += f"{format_seconds(self.time_s)} a step"
        if gain < NOTEWORTHY:
            return f"{text}, and none in its memory is more than {NOTEWORTHY:.0%} faster."
        parts = [f"{c.name} {c.before} -> {c.after}" for c in self.diff.folded_choices]
        more = f" and {len(parts) - _SHOWN} other changes" if len(parts) > _SHOWN else ""
        return (
            f"{text}, and another one {format_seconds(self.best.time_s)} ({-gain:+.1%}): "
            f"{', '.join(parts[:_SHOWN])}{more}."
        )


@dataclass(frozen=True)
class WhyPlan:
    """Why a plan is what it is; as text in plain sentences.

    Attributes:
        plan: that is explained.
        decisions: that matter, the one that saves the most time first.
        num_considered: for how many groups of operators or parameters alternatives were searched.
        memory: the nearest points of the frontier that are noteworthy: with less memory, with
            more, and the fastest of all.
        network: what faster and slower networks would change.
        constraints: what the plan's pins, and the splits that it forbids, cost; None: it has none.
        seconds: that it took.
    """

    plan: Plan
    decisions: tuple[Decision, ...]
    num_considered: int
    memory: tuple[MemoryChange, ...]
    network: tuple[NetworkChange, ...]
    constraints: ConstraintCosts | None
    seconds: float

    @property
    def sentences(self) -> list[str]:
        """All sentences, also those that the text leaves out."""
        return [
            *(decision.sentence(self.plan) for decision in self.decisions),
            *(change.sentence(self.plan) for change in self.memory),
            *(change.sentence() for change in self.network),
            *(self.constraints.sentences if self.constraints else ()),
        ]

    def __str__(self) -> str:
        matter = f"{len(self.decisions)} of {self.num_considered} decisions matter"
        lines = [
            f"{self.plan!r}",
            self.plan.summary(),
            f"{matter} (searched in {format_duration(self.seconds)}):",
        ]
        lines += [f"- {decision.sentence(self.plan)}" for decision in self.decisions[:MOST_PRINTED]]
        if len(self.decisions) > MOST_PRINTED:
            lines.append(
                f"- {len(self.decisions) - MOST_PRINTED} others, of which each saves less."
            )
        lines += [f"- {change.sentence(self.plan)}" for change in self.memory]
        lines += [f"- {change.sentence()}" for change in self.network]
        lines += [f"- {text}" for text in (self.constraints.sentences if self.constraints else ())]
        return "\n".join(lines)


def explain_plan(
    plan: Plan, search: SearchSettings | None = None, storage: Mapping[str, str] | None = None
) -> WhyPlan:
    """Why a plan is what it is, against the best strategies that decide one thing otherwise.

    Makes at most ``2 * MOST_GROUPS + 2`` searches, and some for the plan's constraints, each of
    which takes as long as planning or less; on 8 devices that is some seconds for a Transformer.
    Figures are predictions, within the error of the search, by default 1 %; what differs by less
    is left out.

    Args:
        plan: with its model.
        search: by default as for planning.
        storage: layouts of parameters that are given, by name.

    Raises:
        TensorOptError: the plan was loaded without its model.
    """
    return _Explainer(plan, search or SearchSettings(), storage).explain()


@dataclass(frozen=True)
class _Group:
    names: tuple[str, ...]
    operator: str
    config: str
    nodes: tuple[int, ...]
    share: float  # of all FLOPs, or of all bytes of parameters


class _Explainer:
    def __init__(
        self, plan: Plan, search: SearchSettings, storage: Mapping[str, str] | None
    ) -> None:
        self._plan = plan
        self._search = search
        self._storage = storage
        self._captured: CapturedModel = model_at_hand(plan)
        self._space = make_space(self._captured, plan.settings, storage)

    def explain(self) -> WhyPlan:
        start = time.perf_counter()
        groups = self._groups()
        found = [decision for group in groups if (decision := self._decision(group))]
        decisions = tuple(sorted(filter(self._matters, found), key=self._rank))
        network = tuple(self._network(factor) for factor in NETWORK_FACTORS)
        if self._plan.num_devices == 1:
            network = ()
        constraints = self._plan.settings.constraints
        costs = constraint_costs(self._plan, search=self._search) if constraints else None
        memory, seconds = tuple(memory_changes(self._plan)), time.perf_counter() - start
        return WhyPlan(self._plan, decisions, len(groups), memory, network, costs, seconds)

    @cached_property
    def _rows(self) -> list[_C.NodeRow]:
        return self._space.nodes()

    @cached_property
    def _allowed(self) -> list[list[bool]]:
        settings = self._plan.settings
        return allowed_configs(self._space, self._captured, settings, settings.constraints)

    def _groups(self) -> list[_Group]:
        """The heaviest groups of operators and of parameters."""
        index = {row.name: number for number, row in enumerate(self._rows)}
        weights = self._weights()
        members = defaultdict(list)
        for choice in described(self._space, self._plan).choices:
            key = name_pattern(choice.node), choice.operator, choice.config
            members[key].append(choice.node)
        groups = [
            _Group(
                tuple(names),
                operator,
                config,
                tuple(index[name] for name in names),
                sum(weights.get(name, 0.0) for name in names),
            )
            for (_, operator, config), names in members.items()
        ]
        heaviest = sorted(groups, key=lambda group: -group.share)
        of_kind = (
            [group for group in heaviest if (group.operator == PARAMETER) is is_parameter]
            for is_parameter in (True, False)
        )
        return [g for kind in of_kind for g in kind[:MOST_GROUPS] if g.share >= NOTEWORTHY]

    def _weights(self) -> dict[str, float]:
        """By name, the share of FLOPs of an operator, or of bytes of a parameter."""
        flops = {record.name: record.flops for record in self._space.explain()}
        values = {
            source.names[0]: source.placeholder.meta["val"] for source in self._captured.parameters
        }
        sizes = {name: float(v.numel() * v.element_size()) for name, v in values.items()}
        work = {name: amount for name, amount in flops.items() if name not in sizes}
        return {
            **{name: amount / max(1.0, sum(work.values())) for name, amount in work.items()},
            **{name: amount / max(1.0, sum(sizes.values())) for name, amount in sizes.items()},
        }

    def _decision(self, group: _Group) -> Decision | None:
        """None if no strategy splits the group otherwise."""
        masks = list(self._allowed)
        chosen = self._plan.choices.labels
        for node in group.nodes:
            row = self._rows[node]
            own = self._kind(group, row.splits[row.configs.index(chosen[node])])
            masks[node] = [
                allowed and self._kind(group, splits) != own
                for allowed, splits in zip(masks[node], row.splits, strict=True)
            ]
            if not any(masks[node]):
                return None
        if self._space.blocked_node(masks) is not None:
            return None
        result = self._search.run(self._space, allowed=masks, pick_limits=[self._plan.memory_bytes])
        points: Sequence[tuple[float, float]] = result.points
        limit = self._plan.memory_bytes * (1 + _ROUNDING)
        fitting = pick_index(points, limit)
        limit_s = self._plan.time_s * (1 + _ROUNDING)
        fast = next((i for i, (_, time_s) in enumerate(points) if time_s <= limit_s), None)
        in_memory = self._plan_of(result, fitting) if fitting is not None else None
        in_time = self._plan_of(result, fast) if fast is not None else None
        return Decision(
            group.names,
            group.operator,
            group.config,
            in_memory,
            in_time,
            float(result.min_memory),
            self._instead(group, in_memory or in_time),
        )

    def _kind(self, group: _Group, splits: str) -> object:
        """What is the same decision has the same kind."""
        if group.operator == PARAMETER:
            return num_shards(splits, [size for size, _ in self._plan.settings.mesh_axes])
        return sorted(splits.split(","))

    def _instead(self, group: _Group, plan: Plan | None) -> str:
        if plan is None:
            return ""
        chosen, blocks = plan.choices.labels, self._captured.blocks
        labels = [shown_config(blocks, self._rows[node], chosen[node]) for node in group.nodes]
        return Counter(labels).most_common(1)[0][0]

    def _plan_of(self, result: _C.SearchResult, index: int) -> Plan:
        settings, strategy = self._plan.settings, result.unroll(index)
        return Plan.of(self._space, settings, self._captured, strategy, tuple(result.points))

    def _matters(self, decision: Decision) -> bool:
        if decision.in_memory is None:
            return True
        return decision.in_memory.time_s > self._plan.time_s * (1 + NOTEWORTHY)

    def _rank(self, decision: Decision) -> tuple[float, float]:
        if decision.in_memory is None:
            return (0, -decision.least_memory_bytes)
        return (1, -decision.in_memory.time_s)

    def _network(self, factor: float) -> NetworkChange:
        settings = faster_network(self._plan.settings, factor)
        space = make_space(self._captured, settings, self._storage)
        limit = self._plan.memory_bytes
        result = self._search.run(space, pick_limits=[limit])
        index = pick_index(result.points, limit * (1 + _ROUNDING)) or 0
        points = tuple(result.points)
        best = Plan.of(space, settings, self._captured, result.unroll(index), points)
        strategy = self._plan.choices.strategy(space)
        return NetworkChange(factor, step_time_s(space, strategy), best, self._plan.diff(best))


def faster_network(settings: Settings, factor: float) -> Settings:
    """The same if all communication is ``factor`` times as fast: bandwidths, latencies and
    measured times."""
    cluster = parse_cluster(settings.cluster, "settings")
    measured = tuple(
        (name, axes, tuple((size, seconds / factor) for size, seconds in curve))
        for name, axes, curve in settings.measured
    )
    return replace(settings, cluster=_scaled(cluster, factor).to_dict(), measured=measured)


def _scaled(cluster: Cluster, factor: float) -> Cluster:
    def scaled(speed: Any) -> Any:
        return replace(
            speed,
            bandwidth_bytes_per_s=speed.bandwidth_bytes_per_s * factor,
            latency_s=speed.latency_s / factor,
        )

    levels = []
    for level in cluster.levels:
        collectives = {name: scaled(speed) for name, speed in level.collectives.items()}
        levels.append(replace(scaled(level), collectives=collectives))
    return replace(cluster, levels=tuple(levels))


def _signed_seconds(seconds: float) -> str:
    return f"{format_seconds(abs(seconds))} {'more' if seconds >= 0 else 'less'}"
