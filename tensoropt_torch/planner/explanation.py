"""Why operators have the configs that they have, and what it costs where they cannot
be split over all devices (``csrc/describe/explain.h``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tensoropt_torch import _C
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.frontend.python_calls import proof_of
from tensoropt_torch.plan import Settings
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

PARAMETER = "parameter"
RELAY = "relay"

# Of an operator's time.
_NOTEWORTHY = 0.01

_EXCLUSIONS = {
    "constant": "every device computes what depends on constants only",
    "idle dim": "no heavy operator splits this dim",
    "idle sum": "leaving these sums pending cannot pay",
    "spatial": "spatial dims are split with split_spatial=True only",
}


@dataclass(frozen=True)
class LeftOut:
    """Something that is not considered.

    Attributes:
        reason: ``no rule``, ``uneven`` (a size does not divide), ``constant``,
            ``idle dim``, ``idle sum``, ``spatial``, ``max_configs`` or ``order`` (docs/search.md).
        what: a factor, the dim of a parameter, or a number of configs, in short.
        text: a sentence.
    """

    reason: str
    what: str
    text: str


@dataclass(frozen=True)
class NodeExplanation:
    """An operator, a parameter, or a value with several consumers (``target`` is
    ``relay``).

    Attributes:
        name: of the operator or parameter.
        target: the operator, ``parameter`` or ``relay``.
        rule: e.g. ``b k, n k -> b n``; empty if it is no operator.
        rule_from: of a call of Python, how its rule was found; else empty.
        has_rule: whether the operator has a rule; without, it runs whole.
        num_configs: how many are considered.
        num_in_any_order: how many there are without ``max_configs`` and with all orders of
            alike mesh axes; None if they are too many to count.
        left_out: what is not considered, and why.
        flops: of the whole operator, forward and backward; an estimate without a rule.
        parts: into how many parts its work or the parameter can be split at most.
        time_s, memory_bytes: per device, the least of any config; memory is what is
            kept of operands and outputs, or parameter, gradient and optimizer state.
        even_time_s, even_memory_bytes: the same if it were split evenly over all devices.
    """

    name: str
    target: str
    rule: str
    has_rule: bool
    num_configs: int
    num_in_any_order: int | None
    left_out: tuple[LeftOut, ...]
    flops: float
    parts: int
    time_s: float
    memory_bytes: float
    even_time_s: float
    even_memory_bytes: float
    rule_from: str = ""

    @property
    def is_operator(self) -> bool:
        return self.target not in (PARAMETER, RELAY)

    @property
    def extra_time_s(self) -> float:
        """The time that a step takes longer than with an even split."""
        return max(0.0, self.time_s - self.even_time_s)

    @property
    def extra_memory_bytes(self) -> float:
        """Per device, against an even split."""
        return max(0.0, self.memory_bytes - self.even_memory_bytes)


@dataclass(frozen=True)
class Explanation:
    """What the strategy space of a model on ``num_devices`` devices holds."""

    num_devices: int
    nodes: tuple[NodeExplanation, ...]

    def __repr__(self) -> str:
        return (
            f"Explanation({self.num_devices} devices: {len(self.operators)} operators; "
            f"{len(self.fallbacks)} operators and parameters cannot be split over all devices)"
        )

    @property
    def operators(self) -> list[NodeExplanation]:
        """Operators in execution order."""
        return [node for node in self.nodes if node.is_operator]

    @property
    def total_flops(self) -> float:
        """The FLOPs of all operators, forward and backward."""
        return sum(node.flops for node in self.operators)

    def flops_share(self, node: NodeExplanation) -> float:
        """The part of all FLOPs that is the node's, from 0 to 1."""
        return node.flops / self.total_flops if self.total_flops > 0 else 0.0

    @property
    def fallbacks(self) -> list[NodeExplanation]:
        """Operators and parameters that cannot be split over all devices, though that
        would save time or memory; the costliest first."""
        found = [
            node
            for node in self.nodes
            if node.target != RELAY
            and node.parts < self.num_devices
            and (node.extra_time_s > _NOTEWORTHY * node.time_s or node.extra_memory_bytes > 0)
        ]
        return sorted(found, key=lambda n: (-n.extra_time_s, -n.extra_memory_bytes, n.name))

    def to_records(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        nodes = []
        for node in self.nodes:
            extra = {"extra_time_s": node.extra_time_s}
            extra["extra_memory_bytes"] = node.extra_memory_bytes
            extra["flops_share"] = self.flops_share(node) if node.is_operator else 0.0
            nodes.append(asdict(node) | extra)
        return {"num_devices": self.num_devices, "nodes": nodes}


def explain(task: PlanningTask, num_devices: int) -> Explanation:
    """Explain the strategy space of a task on ``num_devices`` devices."""
    return explanation_of(task.captured, task.settings(num_devices))


def explanation_of(captured: CapturedModel, settings: Settings) -> Explanation:
    """The same of a strategy space by its settings."""
    space = make_space(captured, settings)
    rules = frozenset(captured.lowering.rules.targets())
    nodes = tuple(_node(row, rules, settings.max_configs) for row in space.explain())
    return Explanation(settings.num_devices, nodes)


def _node(row: _C.ExplanationRow, rules: frozenset[str], max_configs: int) -> NodeExplanation:
    has_rule = row.target in rules or row.target in (PARAMETER, RELAY)
    return NodeExplanation(
        row.name,
        row.target,
        row.rule,
        has_rule,
        row.num_configs,
        row.num_in_any_order,
        tuple(_left_out(row, has_rule, max_configs)),
        row.flops,
        row.parts,
        row.time_s,
        row.memory_bytes,
        row.even_time_s,
        row.even_memory_bytes,
        _rule_from(row.target),
    )


def _rule_from(target: str) -> str:
    proof = proof_of(target)
    return proof.reason if proof is not None and proof.rule else ""


def _left_out(row: _C.ExplanationRow, has_rule: bool, max_configs: int) -> Iterator[LeftOut]:
    if not has_rule:
        proof = proof_of(row.target)
        why = "it has no rule" if proof is None else f"it runs whole ({proof.reason})"
        what = "" if proof is None else proof.reason
        yield LeftOut("no rule", what, f"{why}: register one (register_rule)")
    uneven: dict[tuple[str, int, bool], list[int]] = {}
    for split in row.uneven_splits:
        uneven.setdefault((split.factor, split.size, split.equal), []).append(split.parts)
    for (factor, size, equal), numbers in uneven.items():
        parts = " or ".join(map(str, sorted(numbers)))
        kind = f"{parts} equal parts" if equal else f"{parts} parts of which none is empty"
        text = f"'{factor}' of size {size} cannot be cut into {kind}"
        yield LeftOut("uneven", f"{factor} ({size}) by {parts}", text)
    for one in row.exclusions:
        text = f"'{one.factor}' is not split: {_EXCLUSIONS[one.reason]}"
        yield LeftOut(one.reason, one.factor, text)
    yield from _left_out_of_list(row, max_configs)


def _left_out_of_list(row: _C.ExplanationRow, max_configs: int) -> Iterator[LeftOut]:
    count, runs = row.num_configs, row.max_runs
    without_budget, any_order = row.num_without_budget, row.num_in_any_order
    if runs is not None:
        number = f"{without_budget - count} configs" if without_budget else "configs"
        text = (
            f"{number} with more than {runs} runs of mesh axes: with them there would be more "
            f"than max_configs={max_configs} allows"
        )
        yield LeftOut("max_configs", number, text)
    if any_order is not None and without_budget is not None and any_order > without_budget:
        number = f"{any_order - without_budget} configs"
        text = f"{number} that differ in the order of alike mesh axes only (space='full' has them)"
        yield LeftOut("order", number, text)
