"""How much is trained, and what a step is, by figures that were worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensoropt_torch import TensorOptError, load_cluster
from tensoropt_torch.advising.work import StepWork, Work, step_work, work_of
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask

STEP = StepWork(rows=8, tokens=512, flops={"bfloat16": 989e12, "float32": 67e12})


@pytest.mark.parametrize(
    ("work", "steps"),
    [(Work(5120, "tokens"), 10), (Work(24, "samples"), 3), (Work(7, "steps"), 7)],
)
def test_steps_of_all_units(work: Work, steps: float) -> None:
    assert work.steps(STEP) == steps


def test_one_unit_is_asked_for() -> None:
    assert work_of(None, 3, None) == Work(3, "samples")
    with pytest.raises(TensorOptError, match="in one of tokens, samples and steps; got none"):
        work_of(None, None, None)
    with pytest.raises(TensorOptError, match="got tokens and steps"):
        work_of(1e9, None, 3)
    with pytest.raises(TensorOptError, match="tokens = -1"):
        work_of(-1, None, None)


def test_tokens_of_an_example_without_any_are_refused() -> None:
    with pytest.raises(TensorOptError, match="no tokens that are known"):
        Work(1e9, "tokens").steps(StepWork(8, 0, {}))


def test_each_dtype_has_its_peak() -> None:
    device = load_cluster("h100-8").device  # 989 and 67 TFLOP/s
    assert STEP.peak_seconds(device) == pytest.approx(2.0)
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
    step = step_work(PlanningTask(capture(model, (ids,)), load_cluster("h100-8")))
    assert (step.rows, step.tokens) == (6, 30)
    # 2 for each multiplication and addition, three times: forward, and two products backward.
    assert step.flops == {"float32": 3 * 2 * 30 * 16 * 4}


def test_without_whole_numbers_there_are_no_tokens() -> None:
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)), (torch.rand(3, 4),))
    assert step_work(PlanningTask(captured, load_cluster("h100-8"))).tokens == 0
