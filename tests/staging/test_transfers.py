"""What sending between stages takes, beside counting what passes each link."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from tensoropt_torch.config import load_cluster, mesh_axes
from tensoropt_torch.config.cluster import Cluster, Level
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import MeasuredCurve
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.staging.transfers import Transfers

BYTES = 1e6


def task_of(levels: list[Level]) -> PlanningTask:
    captured = capture(nn.Linear(4, 4), (torch.zeros(8, 4),))
    cluster = Cluster("random", "made up", load_cluster("cpu").device, tuple(levels))
    return PlanningTask(captured, cluster)


def place(levels: list[Level], device: int) -> list[int]:
    """Of a device, which unit of each level it is in, outermost first."""
    found = []
    for level in reversed(levels):
        found.append(device % level.count)
        device //= level.count
    return found[::-1]


def counted_s(levels: list[Level], stage: int, stages: int, devices: int) -> float:
    """Of the link that takes longest: each device's bytes leave the unit that it is in, of the
    outermost level in which it and the receiver differ."""
    loads: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for number in range(devices):
        sender = place(levels, stage * devices + number)
        receiver = place(levels, (stage + 1) % stages * devices + number)
        level = next(i for i in range(len(levels)) if sender[i] != receiver[i])
        loads[level, tuple(sender[: level + 1])] += 1
    return max(
        levels[i].latency_s + BYTES * n / levels[i].bandwidth_bytes_per_s
        for (i, _), n in loads.items()
    )


@pytest.mark.parametrize("seed", range(30))
def test_links_are_shared_by_the_devices_of_a_unit(seed: int) -> None:
    chosen = random.Random(seed)
    counts = chosen.choice([[8], [2, 4], [4, 2], [2, 2, 2], [4, 4], [2, 6], [2, 3], [2, 12]])
    levels = [
        Level(
            str(i), count, 10.0 ** chosen.randint(8, 11), 10.0 ** -chosen.randint(2, 6), "made up"
        )
        for i, count in enumerate(counts)
    ]
    task = task_of(levels)
    total = task.cluster.num_devices
    stages = chosen.choice([n for n in (2, 3, 4, 6, 8, 16) if total % n == 0])
    transfers = Transfers(task, total, stages)
    for stage in range(stages):
        expected = counted_s(levels, stage, stages, total // stages)
        assert transfers.seconds(stage, BYTES) == pytest.approx(expected), (seed, stage)


def test_measured_broadcasts_over_the_same_level_are_taken() -> None:
    levels = [Level("machine", 2, 1e8, 1e-4, "made up"), Level("device", 4, 1e10, 1e-6, "made up")]
    task = task_of(levels)
    axes = mesh_axes(task.cluster, 8)
    assert axes == [(2, 0), (2, 1), (2, 1)]

    def curve(name: str, number: int, seconds: float) -> MeasuredCurve:
        return (name, number, ((BYTES / 2, seconds / 2), (BYTES, seconds)))

    curves = (
        curve("broadcast", 0b001, 0.5),
        curve("broadcast", 0b010, 0.25),
        curve("all_reduce", 0b001, 7.0),
    )
    measured = replace(task, measured=curves, measured_on=8)
    transfers = Transfers(measured, 8, 4)
    found = [transfers.seconds(stage, BYTES) for stage in range(3)]
    assert found == pytest.approx([0.25, 0.5, 0.25])
    others = replace(task, measured=curves, measured_on=4)
    described = [Transfers(task, 8, 4).seconds(stage, BYTES) for stage in range(3)]
    assert [Transfers(others, 8, 4).seconds(stage, BYTES) for stage in range(3)] == described
    assert described == pytest.approx([1e-6 + 1e-4, 1e-4 + 2e-2, 1e-6 + 1e-4])
    partly = replace(measured, measured=curves[1:])
    assert Transfers(partly, 8, 4).seconds(1, BYTES) == pytest.approx(described[1])
