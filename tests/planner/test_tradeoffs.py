"""The third objective, against comparing all points with all."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from torch import nn

from tensoropt_torch import TensorOptError, load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner import tradeoffs
from tensoropt_torch.planner.candidates import find_frontier
from tensoropt_torch.planner.device_counts import Objective
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.planner.tradeoffs import TradeoffPoint, find_tradeoffs

COUNTS = [1, 2, 4, 8]


@pytest.fixture(scope="module")
def task() -> PlanningTask:
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(3)]
        model, args = nn.Sequential(*layers), (torch.zeros(64, 2048),)
    cluster = load_cluster("h100-8")
    device = dataclasses.replace(cluster.device, price_per_hour=3.6)
    return PlanningTask(capture(model, args), dataclasses.replace(cluster, device=device))


def beats(a: TradeoffPoint, b: TradeoffPoint) -> bool:
    """No worse in all three, and not the same costs."""
    left, right = ((p.memory_bytes, p.time_s, p.cost) for p in (a, b))
    return left != right and all(x <= y for x, y in zip(left, right, strict=True))


@pytest.mark.parametrize("objective", ["device_count", "energy", "money"])
def test_holds_a_point_for_every_strategy_of_every_count(
    task: PlanningTask, objective: Objective
) -> None:
    found = find_tradeoffs(task, COUNTS, objective)
    assert len({point.num_devices for point in found}) > 1
    assert not any(beats(a, b) for a in found for b in found)
    factor = {"device_count": 0.0, "energy": 700.0, "money": 1e-3}[objective]
    for count in COUNTS:
        for point in find_frontier(task, count):
            cost = count * factor * point.time_s if factor else count
            assert any(
                p.memory_bytes <= point.memory_bytes
                and p.time_s <= point.time_s
                and p.cost <= cost * (1 + 1e-12)
                for p in found
            )
    assert found.guarantee.exact
    assert found.guarantee.epsilon <= task.search.epsilon


@pytest.mark.parametrize("seed", range(20))
def test_the_sweep_equals_comparing_all_pairs(seed: int) -> None:
    generator = random.Random(seed)
    points = [
        TradeoffPoint(*(generator.randint(1, 6) for _ in range(4)), None)  # type: ignore[arg-type]
        for _ in range(40)
    ]
    costs = {(p.memory_bytes, p.time_s, p.cost) for p in points}
    expected = {
        (p.memory_bytes, p.time_s, p.cost)
        for p in points
        if not any(beats(other, p) for other in points)
    }
    kept = tradeoffs._pareto(points)
    assert {(p.memory_bytes, p.time_s, p.cost) for p in kept} == expected <= costs
    assert len(kept) == len(expected)


def test_the_cheapest_that_fits(task: PlanningTask) -> None:
    found = find_tradeoffs(task, COUNTS, "money")
    limit = max(point.memory_bytes for point in found)
    cheapest = found.cheapest(limit)
    assert cheapest.cost == min(point.cost for point in found)
    fastest = min(point.time_s for point in found)
    assert found.cheapest(limit, fastest).time_s == fastest
    assert cheapest.plan.num_devices == cheapest.num_devices
    with pytest.raises(TensorOptError, match="the least is"):
        found.cheapest(1)
    with pytest.raises(TensorOptError, match="the fastest takes"):
        found.cheapest(limit, fastest / 2)


def test_unknown_prices_and_objectives_are_refused(task: PlanningTask) -> None:
    bare = dataclasses.replace(task, cluster=load_cluster("paper-2x8-v100"))
    with pytest.raises(TensorOptError, match="price_per_hour"):
        find_tradeoffs(bare, [1], "money")
    with pytest.raises(TensorOptError, match="objective 'carbon'"):
        find_tradeoffs(task, [1], "carbon")  # type: ignore[arg-type]
