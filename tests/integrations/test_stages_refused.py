"""Loops that give each rank its share of the batch refuse plans in stages."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensoropt_torch import TensorOptError, find_stages
from tensoropt_torch.integrations.plan_source import PlanSource, check_inputs


def test_plans_in_stages_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.zeros(4, 4)
    loss: dict[str, object] = {"loss_fn": nn.functional.mse_loss, "targets": (x,)}
    plan = find_stages(model, (x,), stages=2, num_devices=2, cluster="h100-8", **loss)  # type: ignore[arg-type]
    for refuse in (
        lambda: PlanSource(plan=plan).given_plan,  # type: ignore[arg-type]
        lambda: check_inputs(plan),  # type: ignore[arg-type]
    ):
        with pytest.raises(TensorOptError, match="the plan is one in stages"):
            refuse()
