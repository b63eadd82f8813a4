"""What other strategies take beside the plan that is picked, and what makes the difference: also
where that is small, and where theirs do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner.described_points import PlanWords
from tensoropt_torch.planner.page_charts import Points
from tensoropt_torch.telling.because import costs_in, why_faster
from tensoropt_torch.telling.details import PlanDetails
from tensoropt_torch.units import format_bytes, format_share

_NAMED = 0.1  # of what a plan keeps, of a part that is named
_STORED = ("parameters", "gradients", "optimizer state")


class Strategies(Protocol):
    """Those of one system: its name, also as its users say it, (memory_bytes, time_s) points by
    ascending memory, and their plans."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def points(self) -> Points: ...
    def plan(self, index: int, /) -> Plan | StagedPlan: ...


@dataclass(frozen=True)
class Beside:
    """What is picked of some strategies at the limit.

    Attributes:
        title: their name.
        kept_bytes: that the picked plan keeps on a device, or the least of them where none fits;
            None: there is none for this model.
        time_s: of a step; None: nothing fits.
        peak_bytes: simulated, if it is known.
        compared: how much faster or slower ours is, and why; or why nothing fits.
        does: what the plan does whose memory it is.
    """

    title: str
    kept_bytes: float | None = None
    time_s: float | None = None
    peak_bytes: int | None = None
    compared: str = ""
    does: str = ""


def beside(
    one: Strategies,
    picked: int | None,
    peak_bytes: int | None,
    limit: float,
    ours: PlanDetails | None,
    words: PlanWords,
) -> Beside:
    """Of the strategies of one system, of which the point ``picked`` is picked at a ``limit`` in
    bytes per device. ``ours`` is what is picked of the frontier."""
    if not one.points:
        return Beside(one.title)
    kept, time_s = one.points[picked or 0]
    details = words.details(one.plan(picked or 0))
    if picked is None:
        why = why_it_does_not_fit(details, kept, limit)
        return Beside(one.title, kept, None, peak_bytes, why, details.summary)
    faster = (
        why_faster(costs_in(ours), costs_in(details), one.title, small=True)
        if ours
        else "none of TensorOpt's fits"
    )
    return Beside(one.title, kept, time_s, peak_bytes, faster, details.summary)


def why_it_does_not_fit(details: PlanDetails, kept: float, limit: float) -> str:
    """Of the plan that keeps the least: by how much it is too large, and what that is."""
    over = kept - limit
    much = (
        f"keeps at least {format_bytes(kept)}, {format_bytes(over)} above the limit"
        if over > 0
        else f"keeps at least {format_bytes(kept)}, and its simulated peak is above the limit"
    )
    return f"does not fit: it {much}: {parts_of_memory(details)}"


def parts_of_memory(details: PlanDetails) -> str:
    """What a device keeps, in its largest parts, with the share that a device has of what may be
    stored in parts."""
    memory = details.memory
    stored = sum(memory.get(name, 0.0) for name in _STORED)
    whole = sum(details.whole.values())
    parts = {f"parameters, gradients and optimizer state{_share(stored, whole)}": stored}
    parts |= {name: count for name, count in memory.items() if name not in _STORED}
    least = _NAMED * sum(memory.values())
    most_first = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{format_bytes(n)} {name}" for name, n in most_first if n >= least)


def _share(stored: float, whole: float) -> str:
    if not whole:
        return ""
    share = stored / whole
    return " (whole on each device)" if share > 0.999 else f" ({format_share(share)} of them)"


def seconds_beside(found: Sequence[Beside]) -> dict[str, float | None]:
    """Step times by title; None: nothing fits."""
    return {one.title: one.time_s for one in found if one.kept_bytes is not None}
