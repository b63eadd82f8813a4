"""Costs brought to the level of whole steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from tensoropt_torch.config import parse_cluster
from tensoropt_torch.config.cluster import Cluster, Device, Level, LinkSpeed, Runtime
from tensoropt_torch.measure.fits import Scales
from tensoropt_torch.measure.runs.validation import ValidatedStrategy
from tensoropt_torch.plan import Plan, StagedPlan
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.settings import MeasuredCurve, OpRecord

_Link = TypeVar("_Link", Level, LinkSpeed)


def rescaled(row: ValidatedStrategy, scales: Scales) -> ValidatedStrategy:
    """The same run, with its times predicted by ``scales``: of the programs that ran. Those
    that are planned with the scales may be others."""
    step_s, network_s = scales.times(row)
    return replace(row, step_s=step_s, network_s=network_s)


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


def as_it_took(plan: Plan | StagedPlan) -> Plan | StagedPlan:
    """A plan that was run, by costs of which its steps take what they took: all times are
    multiplied by one factor, which changes no choice. As it is if it was not run, or is in
    stages."""
    if plan.measured_s is None or isinstance(plan, StagedPlan):
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
    plan = replace(plan, settings=settings, frontier=frontier)
    return plan.with_part(time_s=plan.measured_s)


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
