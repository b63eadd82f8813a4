"""Stages that are given without micro-batches wait for each other, which the log says."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import tensoropt_torch
from tensoropt_torch.staging import finding


def warnings_of(caplog: pytest.LogCaptureFixture, times: int = 1, **options: Any) -> list[str]:
    finding._warn_of_one_micro_batch.cache_clear()
    caplog.clear()
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        x, y = torch.zeros(16, 8), torch.zeros(16, 8)
    with caplog.at_level(logging.WARNING, "tensoropt_torch"):
        for _ in range(times):
            tensoropt_torch.find_stages(
                model, (x,), loss_fn=nn.MSELoss(), targets=(y,), num_devices=4, **options
            )
    return [r.getMessage() for r in caplog.records if "micro-batch" in r.getMessage()]


@pytest.mark.parametrize("memory", ["sums", "simulated"])
@pytest.mark.parametrize("stages", [2, ["2"], [tensoropt_torch.After("1")]], ids=str)
def test_one_micro_batch_in_stages_that_are_given_is_told_once(
    caplog: pytest.LogCaptureFixture, stages: Any, memory: str
) -> None:
    (message,) = warnings_of(caplog, times=2, stages=stages, memory=memory)
    assert message.startswith("2 stages run one micro-batch")
    assert "micro_batches=4" in message and "max_micro_batches=8" in message


@pytest.mark.parametrize(
    "options",
    [
        {"stages": 2, "micro_batches": 2},
        {"stages": 2, "micro_batches": 1},
        {"max_micro_batches": 4},
        {"micro_batches": 1},
        {},
    ],
    ids=str,
)
def test_nothing_is_told_of_others(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    assert warnings_of(caplog, **options) == []


def test_what_is_advised_can_be_done(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"stages": 2, "micro_batches": 4}, {"max_micro_batches": 8}):
        assert warnings_of(caplog, **options) == []
