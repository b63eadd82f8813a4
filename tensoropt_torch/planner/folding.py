"""Layers that are alike share a row: names that differ in numbers only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt_torch.layer_names import folded_name, name_pattern
from tensoropt_torch.planner.explanation import Explanation, NodeExplanation
from tensoropt_torch.telling.details import PlanDetails


@dataclass(frozen=True)
class FoldedChoice:
    """Operators or parameters that are split alike in each of some plans.

    Attributes:
        names: in execution order.
        operator: or ``parameter``.
        configs: of each plan; empty: it does not have them.
        times: in s, of all of them in each plan; 0 of parameters.
    """

    names: tuple[str, ...]
    operator: str
    configs: tuple[str, ...]
    times: tuple[float, ...]

    @property
    def label(self) -> str:
        """The name of the nodes, with ``*`` for numbers that differ."""
        return folded_name(self.names)


@dataclass(frozen=True)
class FoldedFallback:
    """Nodes that cannot be split over all devices for the same reasons; ``first`` is one of
    them, times and bytes are of all."""

    names: tuple[str, ...]
    first: NodeExplanation
    extra_time_s: float
    extra_memory_bytes: float

    @property
    def label(self) -> str:
        return folded_name(self.names)

    @property
    def reasons(self) -> str:
        """Why, in sentences."""
        return "; ".join(item.text for item in self.first.left_out) or (
            "no split over all devices is among its rule's"
        )


def fold_choices(plans: Sequence[PlanDetails]) -> list[FoldedChoice]:
    """The operators and parameters of plans of one model. Stages have some of their own; what a
    plan does not have has no config."""
    every = [{choice.node: choice for choice in plan.description.choices} for plan in plans]
    operators = {node: choice.operator for one in reversed(every) for node, choice in one.items()}
    groups: dict[tuple[str, str, tuple[str, ...]], list[tuple[str, tuple[float, ...]]]]
    groups = defaultdict(list)
    for node in dict.fromkeys(node for one in every for node in one):
        configs = tuple(one[node].config if node in one else "" for one in every)
        times = tuple(plan.operator_time.get(node, 0.0) for plan in plans)
        groups[name_pattern(node), operators[node], configs].append((node, times))
    return [
        FoldedChoice(
            tuple(node for node, _ in members),
            operator,
            configs,
            tuple(map(sum, zip(*(times for _, times in members), strict=True))),
        )
        for (_, operator, configs), members in groups.items()
    ]


def fold_fallbacks(explanation: Explanation) -> list[FoldedFallback]:
    """What cannot be split over all devices, the costliest first."""
    groups: dict[tuple[object, ...], list[NodeExplanation]] = defaultdict(list)
    for node in explanation.fallbacks:
        groups[name_pattern(node.name), node.target, node.left_out, node.parts].append(node)
    folded = [
        FoldedFallback(
            tuple(node.name for node in nodes),
            nodes[0],
            sum(node.extra_time_s for node in nodes),
            sum(node.extra_memory_bytes for node in nodes),
        )
        for nodes in groups.values()
    ]
    return sorted(folded, key=lambda f: (-f.extra_time_s, -f.extra_memory_bytes, f.names))
