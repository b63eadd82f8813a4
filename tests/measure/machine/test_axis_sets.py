"""Which sets of mesh axes are measured, and how many process groups that takes."""

from __future__ import annotations

import math

import pytest

from tensoropt_torch import _C
from tensoropt_torch.measure.machine import axis_sets
from tensoropt_torch.measure.machine.axis_sets import affordable, num_groups, sets_of_collectives
from tensoropt_torch.runtime.meshes import all_axis_sets, partition


def mesh_of(*levels: int) -> list[tuple[int, int]]:
    """Levels of so many pairs, outermost first."""
    return [(2, index) for index, count in enumerate(levels) for _ in range(count)]


def groups_of(mesh: list[tuple[int, int]], chosen: tuple[int, ...]) -> int:
    """Process groups that are made, by how ranks are parted."""
    sizes = [size for size, _ in mesh]
    parts = [len(partition(sizes, axes)) for axes in chosen]
    return sum(count for count in parts if count > 1)


@pytest.mark.parametrize("sizes", [(2,), (2, 2, 2), (3, 2), (2, 3, 2)])
def test_numbers_of_groups_are_those_of_the_parts(sizes: tuple[int, ...]) -> None:
    for axes in all_axis_sets(sizes):
        parts = len(partition(sizes, axes))
        assert num_groups(sizes, axes) == (parts if parts > 1 else 0)


@pytest.mark.parametrize("levels", [(), (1,), (3,), (1, 3), (4,)])
def test_on_few_devices_all_sets_are_measured(levels: tuple[int, ...]) -> None:
    mesh = mesh_of(*levels)
    found = sets_of_collectives(mesh)
    assert found.chosen == tuple(range(1, 2 ** len(mesh)))
    assert found.left_out == ()


# 664 and 58,024 groups are those of all sets.
@pytest.mark.parametrize(
    ("levels", "most"), [((6,), 62), ((3, 3), 160), ((10,), 1022), ((7, 3), 2800)]
)
def test_groups_on_64_and_1024_devices_are_few(levels: tuple[int, ...], most: int) -> None:
    mesh = mesh_of(*levels)
    found = sets_of_collectives(mesh)
    assert found.left_out == ()
    assert 0 < groups_of(mesh, found.chosen) <= most
    assert len(found.chosen) == math.prod(count + 1 for count in levels) - 1


@pytest.mark.parametrize("levels", [(6,), (3, 3), (7, 3)])
def test_every_set_takes_the_times_of_one_that_was_measured(levels: tuple[int, ...]) -> None:
    mesh = mesh_of(*levels)
    core = _C.Mesh(mesh)
    kind = _C.Collective.ALL_REDUCE
    chosen = sets_of_collectives(mesh).chosen
    table = {(kind, axes): [_C.CollectiveSample(1024.0, float(axes))] for axes in chosen}
    times = _C.MeasuredCollectives(core, table, _described(mesh))
    for axes in range(1, 2 ** len(mesh)):
        assert times.time_s(kind, axes, 1024.0) == core.canonical(axes)


def _described(mesh: list[tuple[int, int]]) -> _C.AnalyticCollectives:
    device = _C.Device(name="device", peak_flops_per_s={"float32": 1e12})
    levels = [
        _C.Level(
            name=f"level {index}",
            count=math.prod(size for size, at in mesh if at == index),
            bandwidth_bytes_per_s=1e9,
            latency_s=1e-5,
        )
        for index in range(1 + max(at for _, at in mesh))
    ]
    return _C.AnalyticCollectives(
        _C.Cluster(name="cluster", device=device, levels=levels), _C.Mesh(mesh)
    )


def test_beyond_the_limit_nothing_is_measured_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(axis_sets, "MOST_GROUPS", 100)
    mesh = mesh_of(3, 3)
    found = sets_of_collectives(mesh)
    assert 0 < groups_of(mesh, found.chosen) <= 100
    largest_first = [num_groups([2] * 6, axes) for axes in found.left_out]
    assert min(largest_first) >= max(num_groups([2] * 6, axes) for axes in found.chosen)
    with pytest.warns(UserWarning, match="computed from the cluster's description"):
        found.warn("collectives")


def test_groups_that_are_there_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axis_sets, "MOST_GROUPS", 4)
    sizes = [2, 2, 2]
    assert affordable(sizes, [0b001, 0b010]).chosen == (0b001,)
    assert affordable(sizes, [0b001, 0b010], made=[0b010]).chosen == (0b010,)
