"""Plans in words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch import Plan, TensorOptError
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.baselines import find_baselines
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.telling.description import describe


def data_parallel() -> Plan:
    """Of two linear layers, on 4 devices."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    captured = capture(model, (torch.ones(32, 8),), loss_fn=lambda y: y.sum())
    task = PlanningTask(captured, tensoropt_torch.load_cluster("cpu"), optimizer="sgd")
    (baseline,) = find_baselines(task, 4, ["data parallel"])
    return baseline.plan(0)


def test_data_parallelism_splits_the_batch_and_reduces_four_gradients() -> None:
    found = describe(data_parallel())
    assert found.sizes == (2, 2)
    configs = {choice.node: (choice.operator, choice.config) for choice in found.choices}
    linear = "aten.linear.default"
    assert configs == {
        **dict.fromkeys(["0.weight", "0.bias", "1.weight", "1.bias"], ("parameter", "R,R")),
        **dict.fromkeys(["0.linear", "1.linear_1"], (linear, "b0,b0")),
        "sum_1": ("aten.sum.default", "d0,d0"),
    }
    # The batch, which every rank has whole, four gradients, and the loss.
    assert found.num_resharded == 6
    assert found.num_edges == 8


def test_a_plan_without_its_model_cannot_be_described() -> None:
    with pytest.raises(TensorOptError, match="no model at hand"):
        describe(Plan.from_json(data_parallel().to_json()))
