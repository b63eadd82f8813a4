"""What a step works on, by figures that were worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensoropt_torch import TensorOptError, load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.frontend.capture import CapturedModel
from tensoropt_torch.planner.step_work import StepWork, step_work
from tensoropt_torch.planner.task import PlanningTask


def work_in_a_step(captured: CapturedModel) -> StepWork:
    return step_work(captured, PlanningTask(captured, load_cluster("h100-8")).settings(8))


def test_each_dtype_has_its_peak() -> None:
    step = StepWork(rows=8, tokens=512, flops={"bfloat16": 989e12, "float32": 67e12})
    device = load_cluster("h100-8").device  # 989 and 67 TFLOP/s
    assert step.peak_seconds(device) == pytest.approx(2.0)
    with pytest.raises(TensorOptError, match="no peak for float8"):
        StepWork(1, 0, {"float8": 1.0}).peak_seconds(device)


class Words(nn.Module):
    """An embedding of 10 words in 16 channels, and a linear layer to 4 of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.embed(ids)).pow(2).mean()


def test_flops_are_those_of_products_forward_and_backward() -> None:
    model, ids = Words(), torch.zeros(6, 5, dtype=torch.long)
    step = work_in_a_step(capture(model, (ids,)))
    assert (step.rows, step.tokens) == (6, 30)
    # 2 for each multiplication and addition, three times: forward, and two products backward.
    assert step.flops == {"float32": 3 * 2 * 30 * 16 * 4}


def test_without_whole_numbers_there_are_no_tokens() -> None:
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)), (torch.rand(3, 4),))
    assert work_in_a_step(captured).tokens == 0
