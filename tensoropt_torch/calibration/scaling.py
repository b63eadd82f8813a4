"""Costs brought to the level of whole steps.

Operators that are measured one by one find their data in the cache, and collectives
meet ranks that do nothing else. In a step both take longer: computing by a factor that is
much the same for all strategies of a model on a machine, and each collective by the time
that ranks wait for each other as well, which does not depend on its size. It may be below
zero: between others of a step a small one finds the threads that move data awake.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Protocol, TypeVar

from tensoropt_torch.calibration.validation import ValidatedStrategy
from tensoropt_torch.config import parse_cluster
from tensoropt_torch.config.cluster import Cluster, Device, Level, LinkSpeed, Runtime
from tensoropt_torch.plan import Plan
from tensoropt_torch.plan.settings import MeasuredCurve, OpRecord
from tensoropt_torch.planner.task import PlanningTask

_Link = TypeVar("_Link", Level, LinkSpeed)

# The mean error that must be gained for seconds of collectives which are all of the network
# time, half as much where they are half of it.
GAIN = 0.005

# Fewer strategies would be fitted by a factor and seconds without a remainder, noise included.
LEAST_FOR_SECONDS = 3


class TimedStrategy(Protocol):
    """Predicted and measured times of a step, in s, and how many collectives it has."""

    @property
    def step_s(self) -> float: ...
    @property
    def measured_step_s(self) -> float: ...
    @property
    def network_s(self) -> float: ...
    @property
    def measured_network_s(self) -> float: ...
    @property
    def collectives(self) -> float: ...


@dataclass(frozen=True)
class Scales:
    """What computing and the network take in steps, as multiples of what is predicted, and
    what each collective takes in addition, in s."""

    compute: float = 1.0
    network: float = 1.0
    collective_s: float = 0.0


def scales_of(strategies: Iterable[TimedStrategy], with_seconds: bool = True) -> Scales:
    """What fits the strategies that were run best: of computing the median ratio, of the
    network the least sum of relative errors, which a few disturbed runs do not move. 1 and
    0 s where nothing was measured.

    Where strategies have about as many collectives for their network time, nearly any factor
    goes with some seconds: those that gain next to nothing (``GAIN``) are not taken, and
    none are without ``with_seconds``.
    """
    rows = list(strategies)
    compute = _median_ratio((_compute_s(row), _measured_compute_s(row)) for row in rows)
    rows = [row for row in rows if min(row.network_s, row.measured_network_s) > 0]
    median = _median_ratio((row.network_s, row.measured_network_s) for row in rows)
    tells_seconds = with_seconds and len(rows) >= LEAST_FOR_SECONDS
    pairs = _through_two(rows) if tells_seconds else ()
    likely = (fit for fit in pairs if 0.5 < fit[0] / median < 2)
    candidates = [(median, 0.0), *likely]
    return Scales(compute, *min(candidates, key=lambda fit: _error(rows, *fit)))


def rescaled(row: ValidatedStrategy, scales: Scales) -> ValidatedStrategy:
    """The same run, with its times predicted by ``scales``: of the programs that ran. Those
    that are planned with the scales may be others."""
    step_s, network_s = _times(row, scales)
    return replace(row, step_s=step_s, network_s=network_s)


def error_of(row: TimedStrategy, scales: Scales) -> float:
    """How much longer its step is predicted to take by ``scales`` than it took, as a share."""
    step_s, _ = _times(row, scales)
    return step_s / row.measured_step_s - 1


def _times(row: TimedStrategy, scales: Scales) -> tuple[float, float]:
    """Of a step, and of the network."""
    network_s = _network_s(row, scales.network, scales.collective_s)
    return network_s + scales.compute * _compute_s(row), network_s


def _through_two(rows: Sequence[TimedStrategy]) -> Iterator[tuple[float, float]]:
    """Factors and seconds that are right for two rows; the best fit is one of these."""
    for a, b in combinations(rows, 2):
        determinant = a.network_s * b.collectives - b.network_s * a.collectives
        if determinant == 0:
            continue
        across = a.measured_network_s * b.collectives - b.measured_network_s * a.collectives
        down = a.network_s * b.measured_network_s - b.network_s * a.measured_network_s
        yield across / determinant, down / determinant


def _error(rows: Sequence[TimedStrategy], network: float, collective_s: float) -> float:
    return sum(
        abs(_network_s(row, network, collective_s) / row.measured_network_s - 1)
        + GAIN * abs(collective_s) * row.collectives / row.measured_network_s
        for row in rows
    )


def _network_s(row: TimedStrategy, network: float, collective_s: float) -> float:
    return network * row.network_s + collective_s * row.collectives


def scaled(task: PlanningTask, scales: Scales) -> PlanningTask:
    """The task with all its times multiplied: those of operators, updates and launches
    with ``scales.compute``, those of reshards and collectives with ``scales.network``; and
    with ``scales.collective_s`` more for each collective."""
    return replace(
        task,
        cluster=_cluster(task.cluster, scales),
        measured=_curves(task.measured, scales),
        operators=_operators(task.operators, scales),
    )


def as_it_took(plan: Plan) -> Plan:
    """A plan that was run, by costs of which its steps take what they took: all times are
    multiplied by one factor, which changes no choice. As it is if it was not run."""
    if plan.measured_s is None:
        return plan
    factor = plan.measured_s / plan.time_s
    scales = Scales(factor, factor)
    settings = plan.settings
    settings = replace(
        settings,
        cluster=_cluster(parse_cluster(settings.cluster, "the plan"), scales).to_dict(),
        measured=_curves(settings.measured, scales),
        operators=_operators(settings.operators, scales),
    )
    frontier = tuple((memory_bytes, factor * time_s) for memory_bytes, time_s in plan.frontier)
    return replace(plan, settings=settings, time_s=plan.measured_s, frontier=frontier)


def _curves(measured: Iterable[MeasuredCurve], scales: Scales) -> tuple[MeasuredCurve, ...]:
    return tuple(
        (name, axes, tuple((size, scales.network * seconds) for size, seconds in samples))
        for name, axes, samples in measured
    )


def _operators(operators: Iterable[OpRecord], scales: Scales) -> tuple[OpRecord, ...]:
    return tuple(
        (key, family, work, scales.compute * forward_s, scales.compute * backward_s)
        for key, family, work, forward_s, backward_s in operators
    )


def _compute_s(row: TimedStrategy) -> float:
    return row.step_s - row.network_s


def _measured_compute_s(row: TimedStrategy) -> float:
    return row.measured_step_s - row.measured_network_s


def _median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    ratios = [measured / predicted for predicted, measured in pairs if min(predicted, measured) > 0]
    return statistics.median(ratios) if ratios else 1.0


def _cluster(cluster: Cluster, scales: Scales) -> Cluster:
    levels = tuple(_level(level, scales.network) for level in cluster.levels)
    return replace(cluster, device=_device(cluster.device, scales), levels=levels)


def _device(device: Device, scales: Scales) -> Device:
    compute = scales.compute
    return replace(
        device,
        flops_per_s={name: rate / compute for name, rate in device.flops_per_s.items()},
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s / compute,
        launch_overhead_s=compute * device.launch_overhead_s,
        runtime=_runtime(device.runtime, scales),
        source=f"{device.source}; times of steps of the model: computing x {compute:.3g}, "
        f"network x {scales.network:.3g} and {scales.collective_s:.3g} s for each collective",
    )


def _runtime(runtime: Runtime, scales: Scales) -> Runtime:
    updates = tuple(
        replace(
            update,
            parameter_s=scales.compute * update.parameter_s,
            s_per_byte=scales.compute * update.s_per_byte,
        )
        for update in runtime.updates
    )
    return replace(
        runtime,
        reshard_s=scales.network * runtime.reshard_s,
        collective_s=scales.network * runtime.collective_s + scales.collective_s,
        updates=updates,
    )


def _level(level: Level, network: float) -> Level:
    speeds = {name: _slower(speed, network) for name, speed in level.collectives.items()}
    return replace(_slower(level, network), collectives=speeds)


def _slower(link: _Link, network: float) -> _Link:
    return replace(
        link,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / network,
        latency_s=network * link.latency_s,
    )
