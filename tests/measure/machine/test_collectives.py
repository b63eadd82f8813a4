"""Measured times of collectives and of the device."""

from __future__ import annotations

import time
from itertools import accumulate

import torch.distributed as dist

from tensoropt_torch import _C
from tensoropt_torch.config.cluster import COLLECTIVES
from tensoropt_torch.measure.machine.collective_times import (
    MIN_BYTES,
    CollectiveTimes,
    measure_collectives,
)
from tensoropt_torch.measure.machine.device import DeviceSpeed, measure_device
from tensoropt_torch.runtime.groups import AxisGroups
from tests.distributed.harness import run_ranks

HERE = "tests.measure.machine.test_collectives"


def measure(payload: tuple[int, float]) -> tuple[CollectiveTimes, float]:
    max_bytes, budget_s = payload
    groups = AxisGroups((2, 2))
    groups.create([0b01, 0b10, 0b11])
    start = time.perf_counter()
    times = measure_collectives(groups, [0b11, 0b01, 0b10], max_bytes, budget_s)
    dist.barrier()
    return times, time.perf_counter() - start


def test_every_collective_is_measured_and_all_ranks_agree():
    results = run_ranks(4, f"{HERE}:measure", (4 * MIN_BYTES, 60.0))
    times, _ = results[0]
    assert all(other == times for other, _ in results)
    assert set(times) == {(name, axes) for name in COLLECTIVES for axes in (1, 2, 3)}
    for curve in times.values():
        assert [size for size, _ in curve] == [MIN_BYTES, 2 * MIN_BYTES, 4 * MIN_BYTES]
        assert all(0 < seconds < 10 for _, seconds in curve)


def test_a_small_budget_gives_fewer_sizes():
    results = run_ranks(4, f"{HERE}:measure", (1 << 30, 1.0))
    times, seconds = results[0]
    assert all(other == times for other, _ in results)
    assert all(curve[0][0] == MIN_BYTES for curve in times.values())
    assert all(curve[-1][0] < 1 << 30 for curve in times.values())
    assert seconds < 20


def test_measurements_feed_the_planner():
    times, _ = run_ranks(4, f"{HERE}:measure", (2 * MIN_BYTES, 5.0))[0]
    mesh = _C.Mesh([(2, 0), (2, 0)])
    level = _C.Level(name="host", count=4, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    cluster = _C.Cluster("test", _C.Device(), [level])
    # Noise may have made a larger message faster, which a table never is.
    rising = {
        key: list(
            zip((size for size, _ in curve), accumulate((s for _, s in curve), max), strict=True)
        )
        for key, curve in times.items()
    }
    table = {
        (_C.Collective.__members__[name.upper()], axes): [_C.CollectiveSample(*at) for at in curve]
        for (name, axes), curve in rising.items()
    }
    model = _C.MeasuredCollectives(mesh, table, _C.AnalyticCollectives(cluster, mesh))
    for (name, axes), curve in rising.items():
        collective = _C.Collective.__members__[name.upper()]
        assert model.is_measured(collective, axes)
        for size, seconds in curve:
            assert abs(model.time_s(collective, axes, size) / seconds - 1) < 1e-6


def device_speed(budget_s: float) -> DeviceSpeed:
    return measure_device(budget_s=budget_s)


def test_the_device_is_measured_on_all_ranks_at_once():
    first, second = run_ranks(2, f"{HERE}:device_speed", 0.4)
    assert first == second
    assert set(first.matmul_flops_per_s) == {"float32", "bfloat16"}
    assert all(1e6 < flops < 1e16 for flops in first.matmul_flops_per_s.values())
    assert 1e7 < first.copy_bytes_per_s < 1e14
    assert 0 < first.launch_s < 1e-2
