"""Buffers that the first forward pass fills: calls that are not like the example are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensoropt_torch import TensorOptError, find_strategy, parallelize
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.frontend.test_filled_buffers"


class FirstLength(nn.Module):
    """Scales by the length of its first input, in a buffer or an attribute."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if is_buffer:
            self.register_buffer("scale", None, persistent=False)
        else:
            self.scale = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, steps, 4) to a number."""
        if self.scale is None:
            self.scale = torch.arange(4.0) / x.shape[1]
        return (self.layer(x) * self.scale).square().mean()


def called(given: tuple[bool, bool]) -> tuple[list[float], list[float], str]:
    """Losses of the plan and of the model, and what is said of another length."""
    is_buffer, is_called_before = given
    torch.manual_seed(0)
    x, longer = torch.randn(4, 3, 4), torch.randn(4, 6, 4)
    torch.manual_seed(0)
    one = FirstLength(is_buffer)
    torch.manual_seed(0)
    other = FirstLength(is_buffer)
    other.load_state_dict(one.state_dict())
    if is_called_before:
        one(x)
        other(x)
    parallel = parallelize(one, find_strategy(one, (x,), measure=False), (x,))
    got, expected, text = [], [], ""
    for batch in (x, x, longer):
        try:
            got.append(float(parallel(batch).detach()))
        except TensorOptError as error:
            text = str(error)
        expected.append(float(other(batch).detach()))
    return got, expected[: len(got)], text


@pytest.mark.parametrize("is_buffer", [True, False])
@pytest.mark.parametrize("is_called_before", [True, False])
def test_other_lengths(is_buffer: bool, is_called_before: bool) -> None:
    found = run_ranks(1, f"{HERE}:called", (is_buffer, is_called_before), 60)[0]
    got, expected, text = found
    assert got == pytest.approx(expected, rel=1e-6)
    if is_called_before:
        assert len(got) == 3
    else:
        assert len(got) == 2
        assert "fills 'scale', which held nothing before" in text
        assert "Call the model once before planning" in text
