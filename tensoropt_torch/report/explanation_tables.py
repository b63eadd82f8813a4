"""Explanations of strategy spaces as text tables (rich)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tensoropt_torch.planner.explanation import Explanation, LeftOut, NodeExplanation
from tensoropt_torch.units import format_bytes, format_seconds

# Rows of repeated blocks are equal but for names and numbers of nodes.
Kind = tuple[str, str, int, tuple[LeftOut, ...], float]


def explanation_table(explanation: Explanation) -> Table:
    """A row for each kind of operator and parameter: rule, number of configs, and what
    is left out; those that are alike share a row."""
    table = Table(
        title=f"Configs considered on {explanation.num_devices} devices",
        caption="configs: those considered, of all with the splits that are not left out",
    )
    for column in ("node", "operator", "rule", "configs", "FLOPs", "left out"):
        number = column in ("configs", "FLOPs")
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for nodes in _alike(explanation.nodes):
        first = nodes[0]
        more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
        share = sum(explanation.flops_share(node) for node in nodes)
        table.add_row(
            first.name + more,
            first.target.removesuffix(".default"),
            f"{first.rule} ({first.rule_from})" if first.rule_from else first.rule,
            f"{first.num_configs} of {first.num_in_any_order or 'more'}",
            f"{share:.1%}" if first.is_operator else "",
            "; ".join(_by_reason(first.left_out)),
        )
    return table


def _by_reason(left_out: Sequence[LeftOut]) -> list[str]:
    """E.g. ``uneven: h (6) by 4, n (50257) by 2``; orders show in the number of configs."""
    reasons: dict[str, list[str]] = {}
    for item in left_out:
        if item.reason != "order":
            reasons.setdefault(item.reason, []).append(item.what)
    return [f"{reason}: {', '.join(what)}".removesuffix(": ") for reason, what in reasons.items()]


def fallback_table(explanation: Explanation, rows: int = 20) -> Table:
    """What cannot be split over all devices, the costliest first."""
    fallbacks = explanation.fallbacks
    left = len(fallbacks) - rows
    table = Table(
        title="Cannot be split over all devices; extra cost per device against an even split",
        caption=f"and {left} cheaper ones" if left > 0 else None,
    )
    for column in ("node", "operator", "parts", "FLOPs", "extra time", "extra memory"):
        table.add_column(column, justify="left" if column in ("node", "operator") else "right")
    for node in fallbacks[:rows]:
        table.add_row(
            node.name,
            node.target if node.has_rule else f"{node.target} (no rule)",
            f"{node.parts} of {explanation.num_devices}",
            f"{explanation.flops_share(node):.1%}" if node.is_operator else "",
            format_seconds(node.extra_time_s),
            format_bytes(node.extra_memory_bytes),
        )
    return table


def _alike(nodes: Sequence[NodeExplanation]) -> list[list[NodeExplanation]]:
    groups: dict[Kind, list[NodeExplanation]] = {}
    for node in nodes:
        kind = (node.target, node.rule, node.num_configs, node.left_out, node.flops)
        groups.setdefault(kind, []).append(node)
    return list(groups.values())
