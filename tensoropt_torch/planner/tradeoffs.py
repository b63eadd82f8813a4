"""A third objective beside memory and time, over a range of device counts.

On N devices a step of t seconds costs

    device_count   N
    energy         N * power_w * t                  (J)
    money          N * price_per_hour / 3600 * t    (the currency of the price)

On one number of devices the cost falls with the time or stays, so the frontier
of memory and time holds all that is worth having; over several numbers the three
costs are compared. The bound of the frontiers carries over: a strategy of memory
m, time t and cost c on N devices has a point on N devices within (1 + epsilon) of
m and t, and therefore of c; it is left out only for one that is no worse.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from tensoropt_torch.config.cluster import Device
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Guarantee, Plan, StagedPlan
from tensoropt_torch.planner.candidates import Candidate
from tensoropt_torch.planner.device_counts import Objective, cost_of_step, rates_of
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint
from tensoropt_torch.planner.memory_limits import limit_advice
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.units import format_bytes


@dataclass(frozen=True)
class TradeoffPoint:
    """Memory per device (bytes), step time (s) and cost of a step."""

    num_devices: int
    memory_bytes: float
    time_s: float
    cost: float
    _point: FrontierPoint = field(repr=False)

    @property
    def plan(self) -> Plan | StagedPlan:
        """The strategy of this point, ready to be executed."""
        return self._point.plan


class Tradeoffs:
    """Points of several numbers of devices, none of which is beaten in memory,
    time and cost at once; by devices, then memory."""

    def __init__(self, objective: Objective, rate: float, frontiers: Sequence[Frontier]) -> None:
        self.objective = objective
        self.rate = rate
        self.frontiers = tuple(frontiers)
        self._device_bytes = max((f.device_bytes for f in frontiers), default=math.inf)
        self.points = _pareto([p for f in frontiers for p in _priced(f, objective, rate)])
        guarantees = [frontier.guarantee for frontier in frontiers]
        self.guarantee = Guarantee(
            all(g.exact for g in guarantees),
            max((g.epsilon for g in guarantees), default=0.0),
            tuple(sorted({weight for g in guarantees for weight in g.heuristics})),
            all(g.complete for g in guarantees),
        )

    @property
    def unit(self) -> str:
        """The objective with its unit, as a title."""
        device = self.frontiers[0].settings.cluster["device"] if self.frontiers else {}
        currency = device.get("price_currency", "in the currency of price_per_hour")
        units = {"device_count": "", "energy": " (J)", "money": f" ({currency})"}
        return f"{self.objective.replace('_', ' ')}{units[self.objective]}"

    def cost(self, num_devices: int, time_s: float) -> float:
        """What a step costs, in the unit of the objective."""
        return cost_of_step(self.objective, self.rate, num_devices, time_s)

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[TradeoffPoint]:
        return iter(self.points)

    def __repr__(self) -> str:
        counts = ", ".join(map(str, sorted({point.num_devices for point in self.points})))
        return (
            f"Tradeoffs({len(self)} points of memory, time and {self.objective} on {counts} "
            f"devices; {self.guarantee})"
        )

    def cheapest(self, memory_limit: float, time_limit_s: float | None = None) -> TradeoffPoint:
        """The least cost within ``memory_limit`` bytes per device and
        ``time_limit_s`` seconds a step; of equals the fastest.

        Raises:
            TensorOptError: nothing fits; says what would.
        """
        fits = [p for p in self.points if p.memory_bytes <= memory_limit]
        if not fits:
            least = min((p.memory_bytes for p in self.points), default=float("inf"))
            first = limit_advice(least, self._device_bytes)
            raise TensorOptError(
                f"no strategy needs at most {format_bytes(memory_limit)} per device: the least is "
                f"{format_bytes(least)}; {first}allow more devices"
            )
        limit_s = float("inf") if time_limit_s is None else time_limit_s
        in_time = [p for p in fits if p.time_s <= limit_s]
        if not in_time:
            fastest = min(p.time_s for p in fits)
            raise TensorOptError(
                f"no strategy within {format_bytes(memory_limit)} per device takes at most "
                f"{limit_s:.3g} s a step: the fastest takes {fastest:.3g} s; raise time_limit_s to "
                "that, or allow more devices"
            )
        return min(in_time, key=lambda p: (p.cost, p.time_s))


def find_tradeoffs(task: PlanningTask, counts: Sequence[int], objective: Objective) -> Tradeoffs:
    """The frontier of memory, time and ``objective`` over these device counts.

    Raises:
        TensorOptError: the objective is not known, or the cluster does not say what
            a device draws or costs.
    """
    rate = _rate(task.cluster.device, objective)
    frontiers = [Candidate(task, count).frontier() for count in counts]
    return Tradeoffs(objective, rate, frontiers)


# What the description of a device has to say.
_KEYS = {"energy": "power_w", "money": "price_per_hour"}


def _rate(device: Device, objective: Objective) -> float:
    """What one device costs in a second; of ``device_count``: what it counts."""
    rates = rates_of(device)
    if objective not in rates:
        names = ", ".join(f"'{name}'" for name in get_args(Objective))
        raise TensorOptError(f"objective '{objective}' is not known; choose one of {names}")
    rate = rates[objective]
    if rate is None:
        raise TensorOptError(
            f"objective '{objective}' needs '{_KEYS[objective]}' of device '{device.name}', which "
            "the cluster does not say; add it to [device] of the cluster file, or choose another "
            "objective (device_count asks for nothing)"
        )
    return rate


def _priced(frontier: Frontier, objective: Objective, rate: float) -> list[TradeoffPoint]:
    count = frontier.num_devices
    return [
        TradeoffPoint(
            count,
            point.memory_bytes,
            point.time_s,
            cost_of_step(objective, rate, count, point.time_s),
            point,
        )
        for point in frontier
    ]


def _pareto(points: list[TradeoffPoint]) -> list[TradeoffPoint]:
    """By a sweep: memory ascending, over the least costs by time so far."""
    kept: list[TradeoffPoint] = []
    stairs: list[tuple[float, float]] = []  # (time, cost): time up, cost down
    for point in sorted(points, key=lambda p: (p.memory_bytes, p.time_s, p.cost)):
        below = bisect_right(stairs, (point.time_s, float("inf")))
        if below > 0 and stairs[below - 1][1] <= point.cost:
            continue
        kept.append(point)
        last = below
        while last < len(stairs) and stairs[last][1] >= point.cost:
            last += 1
        stairs[below:last] = [(point.time_s, point.cost)]
    return sorted(kept, key=lambda p: (p.num_devices, p.memory_bytes))
