"""What a memory limit makes of a model whose batch outweighs its parameters."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.plan import Plan
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.frontier_page import Additions, frontier_page
from tensoropt_torch.planner.picks import mini_time
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

DEVICES = 4
WIDTH, HIDDEN, ROWS = 64, 256, 1 << 20


def plan(memory_limit: float | None) -> Plan:
    """Of a perceptron with very many rows."""
    with torch.device("meta"):
        up, down = (nn.Linear(*sizes, bias=False) for sizes in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
        model = nn.Sequential(up, nn.GELU(), down)
        x, y = torch.empty(2, ROWS, WIDTH)
    return tensoropt_torch.find_strategy(
        model,
        (x,),
        loss_fn=nn.functional.mse_loss,
        targets=(y,),
        num_devices=DEVICES,
        memory="sums",
        cluster="h100-8",
        memory_limit=memory_limit,
    )


def layouts(plan: Plan) -> tuple[set[str], set[str], set[str]]:
    """Of stored parameters, of the weights that linear layers use, and of what these
    and the activation give."""
    assert plan.captured is not None
    space = make_space(plan.captured, plan.settings)
    stored, used, given = set(), set(), set()
    names = {source.names[0] for source in plan.captured.parameters}
    configs = plan.choices.strategy(space).config
    for i, (row, config) in enumerate(zip(space.nodes(), configs, strict=True)):
        ports = space.ports(i)[config]
        if row.name in names:
            stored.add(ports.outputs[0].value)
        if "linear" in row.target:
            used.add(ports.inputs[1].value)
        if "linear" in row.target or "gelu" in row.target:
            given.add(ports.outputs[0].value)
    return stored, used, given


def test_a_loose_limit_gives_data_parallelism() -> None:
    """Parameters may be stored in shards: then their update is split as well, for the
    price of the same collectives."""
    _, used, given = layouts(plan(None))
    assert used == {"R,R"}
    assert given == {"S0,S0"}


def test_the_least_memory_gives_sharded_parameters() -> None:
    least = min(memory for memory, _ in plan(None).frontier)
    stored, _, given = layouts(plan(least))
    assert stored
    for layout in stored | given:
        assert "R" not in layout


@pytest.mark.parametrize("fraction", [0.7, 0.9, 1.0])
def test_picks_and_pages_have_the_same_limit_where_none_is_given(fraction: float) -> None:
    """That of the task, whatever part of a device it lets plans use."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 8192), nn.GELU(), nn.Linear(8192, 1024))
        x, y = torch.empty(2, 65536, 1024)
    captured = capture(model, (x,), loss_fn=nn.functional.mse_loss, targets=(y,))
    task = PlanningTask(captured, load_cluster("h100-8"), memory_fraction=fraction)
    points = find_frontier(task, DEVICES)
    middle = sum(point.memory_bytes for point in (points.smallest, points.fastest)) / 2
    device = replace(task.cluster.device, memory_bytes=int(middle / 0.7))
    task = replace(task, cluster=replace(task.cluster, device=device))
    frontier, pick = find_frontier(task, DEVICES), mini_time(task, DEVICES)
    assert frontier.default_memory_limit == task.memory_limit_of(None) >= pick.memory_bytes
    picked = frontier.at(task.memory_limit_of(None))
    assert (picked.memory_bytes, picked.time_s) == (pick.memory_bytes, pick.time_s)
    page = frontier_page(frontier.view, Additions())
    assert re.search(rf"point {picked.index}, [^<]*pick", page)
