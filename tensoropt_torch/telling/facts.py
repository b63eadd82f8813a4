"""What a plan is for and what it costs, by what it says itself."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from tensoropt_torch.html_table import html_table
from tensoropt_torch.space.settings import Guarantee
from tensoropt_torch.telling.diff import Compared
from tensoropt_torch.units import format_bytes, format_costs, format_seconds

# A strategy adds its costs up in another order than the search.
_ROUNDING = 1e-9


class Stated(Compared, Protocol):
    """What is needed of a ``Plan`` to say what it is for and what it costs."""

    @property
    def frontier(self) -> Sequence[tuple[float, float]]: ...
    @property
    def guarantee(self) -> Guarantee: ...
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def measured_s(self) -> float | None: ...


def origin_of(plan: Stated) -> str:
    """Which point of the frontier it is, and what holds for that."""
    if not plan.frontier:
        return f"of no frontier, {plan.guarantee}"
    points = sorted(plan.frontier)
    index = bisect_right(points, (plan.memory_bytes * (1 + _ROUNDING), math.inf)) - 1
    time_s = points[index][1] if index >= 0 else 0.0
    if plan.time_s > time_s * (1 + _ROUNDING):
        more = plan.time_s / points[-1][1] - 1
        return f"not on the frontier, predicted {more:.0%} above the fastest point"
    return f"point {index} of {len(points)}, {plan.guarantee}"


def in_one_line(plan: Stated) -> str:
    """Where it runs, what it costs and where it is from."""
    costs = format_costs(plan.memory_bytes, plan.time_s)
    measured = "" if plan.measured_s is None else f", {format_seconds(plan.measured_s)} measured"
    return f"Plan({plan.settings.where}: {costs}{measured}; {origin_of(plan)})"


def as_html(plan: Stated) -> str:
    """The facts of a plan as a table for notebooks."""
    return html_table("Plan", (), facts_of(plan))


def facts_of(plan: Stated) -> Iterator[tuple[str, str]]:
    """What it is for and what it costs, as names and values."""
    settings = plan.settings
    yield "devices", settings.where
    yield "step time", format_seconds(plan.time_s)
    if plan.measured_s is not None:
        yield "measured step time", format_seconds(plan.measured_s)
    yield "memory per device", format_bytes(plan.memory_bytes)
    if plan.peak_bytes is not None:
        yield "simulated peak", format_bytes(plan.peak_bytes)
    yield "frontier", origin_of(plan)
    yield "inputs", settings.inputs_in_words
    yield "overlap", "yes" if settings.overlap else "no"
    if settings.micro_batches > 1:
        yield "micro-batches", str(settings.micro_batches)
    if settings.constraints:
        yield "constraints", ", ".join(map(str, settings.constraints))
    yield "measured collectives", str(len(settings.measured))
    yield "measured operators", str(len(settings.operators))
    yield "model", plan.fingerprint
