"""Collectives of devices that follow each other take what was measured over these axes of the
whole job."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from tensoropt_torch import _C
from tensoropt_torch.config import load_cluster, mesh_axes
from tensoropt_torch.config.cluster import Cluster, Collective, Level
from tensoropt_torch.space.inner_curves import inner_curves
from tensoropt_torch.space.search_space import measured_table
from tensoropt_torch.space.settings import MeasuredCurve

NAMES = get_args(Collective)


def cluster_of(counts: list[int]) -> Cluster:
    levels = tuple(
        Level(f"level {i}", count, 1e9, 1e-5, "made up") for i, count in enumerate(counts)
    )
    return Cluster("random", "made up", load_cluster("cpu").device, levels)


def times(curves: tuple[MeasuredCurve, ...], axes: list[tuple[int, int]]) -> _C.MeasuredCollectives:
    """By what was measured alone: what was not takes hours."""
    counts: dict[int, int] = {}
    for size, level in axes:
        counts[level] = counts.get(level, 1) * size
    slow = [
        _C.Level(
            name=str(level),
            count=counts.get(level, 1),
            bandwidth_bytes_per_s=1.0,
            latency_s=3600.0,
        )
        for level in range(1 + max(counts))
    ]
    mesh = _C.Mesh(axes)
    analytic = _C.AnalyticCollectives(_C.Cluster("slow", _C.Device(), slow), mesh)
    return _C.MeasuredCollectives(mesh, measured_table(curves), analytic)


@pytest.mark.parametrize("seed", range(20))
def test_they_are_those_of_the_whole_job(seed: int) -> None:
    chosen = random.Random(seed)
    counts = chosen.choice([[8], [2, 4], [4, 4], [2, 2, 2], [2, 6], [16]])
    cluster = cluster_of(counts)
    axes = mesh_axes(cluster, cluster.num_devices)
    mesh = _C.Mesh(axes)
    every = range(1, 1 << len(axes))
    sets = every if chosen.random() < 0.5 else sorted({mesh.canonical(each) for each in every})
    curves = tuple(
        (name, each, ((1024.0, chosen.uniform(1e-5, 1e-3)), (4096.0, chosen.uniform(1e-3, 1e-2))))
        for each in sets
        for name in NAMES
    )
    whole = times(curves, axes)
    for outer in range(1, len(axes)):
        inner = axes[outer:]
        own = times(inner_curves(curves, axes, inner), inner)
        for each in range(1, 1 << len(inner)):
            for name in NAMES:
                kind = _C.Collective.__members__[name.upper()]
                expected = whole.time_s(kind, each << outer, 2048)
                assert own.time_s(kind, each, 2048) == expected < 1.0, (seed, outer, each, name)


def test_of_other_meshes_nothing_is_known() -> None:
    curves = (("all_reduce", 1, ((1024.0, 1e-3),)),)
    assert inner_curves(curves, [(2, 0), (3, 0)], [(2, 0)]) == ()
    assert inner_curves(curves, [(2, 0)], [(2, 0), (2, 0)]) == ()
    assert inner_curves(curves, [(2, 0), (2, 1)], []) == ()
