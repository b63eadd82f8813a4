"""Frontiers by simulated peaks instead of the sums that the search needs."""

from __future__ import annotations

from dataclasses import dataclass

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.frontier import Frontier, FrontierPoint, format_bytes
from tensoropt_torch.simulate.step import DEFAULT_STEP, StepSettings, simulate_step


@dataclass(frozen=True)
class SimulatedPoint:
    """A frontier point with both of its figures: the sum of the search
    (``memory_bytes``) and the simulated peak (``peak_bytes``), per device."""

    point: FrontierPoint
    peak_bytes: int

    @property
    def memory_bytes(self) -> float:
        return self.point.memory_bytes

    @property
    def time_s(self) -> float:
        return self.point.time_s

    @property
    def plan(self) -> Plan:
        return self.point.plan


def simulate_frontier(
    frontier: Frontier, step: StepSettings = DEFAULT_STEP, max_points: int = 32
) -> list[SimulatedPoint]:
    """At most ``max_points`` points of a frontier, evenly spaced, simulated, without
    those that another one beats in both peak and time; by ascending peak."""
    simulated = [_simulated(point, step) for point in frontier.thinned(max_points)]
    simulated.sort(key=lambda point: (point.peak_bytes, point.time_s))
    kept: list[SimulatedPoint] = []
    for point in simulated:
        if not kept or point.time_s < kept[-1].time_s:
            kept.append(point)
    return kept


def fastest_within(
    frontier: Frontier, peak_bytes: float, step: StepSettings = DEFAULT_STEP
) -> SimulatedPoint:
    """The fastest point whose simulated peak is at most ``peak_bytes``.

    Points are simulated from the fastest on that fits by its sum, which leaves out
    much, until one fits by its peak.

    Raises:
        TensorOptError: no point fits; says the least peak.
    """
    least: SimulatedPoint | None = None
    for point in reversed(frontier):
        if point.memory_bytes > peak_bytes:
            continue
        simulated = _simulated(point, step)
        if simulated.peak_bytes <= peak_bytes:
            return simulated
        if least is None or simulated.peak_bytes < least.peak_bytes:
            least = simulated
    found = format_bytes(least.peak_bytes) if least else "not known: the sums are larger"
    raise TensorOptError(
        f"no strategy on {frontier.num_devices} devices has a simulated peak of at most "
        f"{format_bytes(peak_bytes)} per device: the least is {found}; raise the memory limit, or "
        "use more devices"
    )


def _simulated(point: FrontierPoint, step: StepSettings) -> SimulatedPoint:
    plan = point.plan
    assert plan.captured is not None, "points of a frontier carry their model"
    return SimulatedPoint(point, simulate_step(plan, plan.captured, step).peak_bytes)
