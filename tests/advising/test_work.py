"""How much is trained, by figures that were worked out by hand."""

from __future__ import annotations

import pytest

from tensoropt_torch import TensorOptError
from tensoropt_torch.advising.work import Work, work_of
from tensoropt_torch.planner.step_work import StepWork

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
