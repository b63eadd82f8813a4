"""Rows of a micro-batch that are fewer than the devices of a stage are shared out along the
outermost axes of its mesh."""

from __future__ import annotations

import math

import pytest
import torch

from tensoropt_torch import Example, PlanningOptions, find_stages, load_cluster
from tensoropt_torch.config import mesh_axes
from tensoropt_torch.staging.parts import RowShares
from tensoropt_torch.tasks import task_of
from tests.stages.models import make


@pytest.mark.parametrize(
    ("devices", "rows", "count", "axes"),
    [
        (4, 8, 4, None),
        (4, 4, 4, None),
        (4, 2, 2, 1),
        (4, 6, 2, 1),
        (4, 3, 1, 0),
        (4, 1, 1, 0),
        (4, 0, 1, 0),
        (1, 0, 1, None),
        (1, 7, 1, None),
        (6, 2, 2, 1),
        (6, 3, 1, 0),  # the outermost axis is of two devices
        (6, 6, 6, None),
        (8, 4, 4, 2),
    ],
)
def test_as_many_axes_as_divide_them(devices: int, rows: int, count: int, axes: int | None) -> None:
    case = make("llama", torch.float32)
    example = Example(case.model, case.args, **case.keywords)
    task = task_of(example, PlanningOptions(cluster="h100-8"))
    sizes = [size for size, _ in mesh_axes(task.cluster, devices)]
    assert math.prod(sizes) == devices
    assert RowShares.of(task, devices, rows) == RowShares(count, axes)


@pytest.mark.parametrize(("rows", "shares"), [(16, 4), (8, 4), (4, 2), (2, 1)])
def test_plans_share_them_so(rows: int, shares: int) -> None:
    """In two micro-batches, on two stages of four devices."""
    case = make("llama", torch.float32, rows)
    plan = find_stages(
        *(case.model, case.args),
        **case.keywords,
        stages=2,
        micro_batches=2,
        num_devices=8,
        cluster=load_cluster("h100-8"),
        memory="sums",
    )
    for part in plan.parts:
        assert part.plan.settings.num_shares == shares
        assert part.plan.settings.row_axes == {4: None, 2: 1, 1: None}[shares]
