"""A model has the same frontier, whichever frontend it comes through."""

from typing import Any

import pytest
import torch

import tensoropt_torch
import tensoropt_torch.tf_style as to
from tests.tf_style.models import PAIRS


@pytest.mark.parametrize("name", PAIRS)
def test_both_frontends_give_one_frontier(name: str) -> None:
    pair = PAIRS[name]
    exact = tensoropt_torch.SearchSettings(epsilon=0)
    planning: dict[str, Any] = {"cluster": "h100-8", "num_devices": 4, "search": exact}
    to.reset_default_graph()
    to.AdamOptimizer(0.01).minimize(pair.build())
    ours = to.find_frontier(**planning)
    x, y = pair.draw()
    with torch.device("meta"):
        module = pair.module()
    args = (pair.to_torch(x).to("meta"), y.to("meta"))
    theirs = tensoropt_torch.find_frontier(module, args, optimizer="adam", **planning)
    assert len(ours) > 3
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.memory_bytes == b.memory_bytes
        assert a.time_s == pytest.approx(b.time_s, rel=1e-12)  # sums in another order


def test_the_optimizer_of_the_graph_is_planned_for() -> None:
    memory = []
    for optimizer in (to.GradientDescentOptimizer(0.1), to.MomentumOptimizer(0.1, 0.9)):
        to.reset_default_graph()
        optimizer.minimize(PAIRS["mlp"].build())
        memory.append(to.find_frontier(cluster="h100-8", num_devices=1).smallest.memory_bytes)
    parameters = 32 * 64 + 64 + 64 * 8 + 8
    assert memory[1] - memory[0] == parameters * 4
