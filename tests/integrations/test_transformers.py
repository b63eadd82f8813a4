"""``Trainer`` on several ranks does what ``transformers.Trainer`` does in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from tests.distributed.harness import run_ranks
from tests.integrations.trainers import STEPS, Job, Log, plain_run

HERE = "tests.integrations.trainers"
SGD = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0}  # any scale of gradients shows
CLOSE = 1e-3  # rounding differences grow along a run of Adam; the loss falls by a third


def assert_equal(got: Log, expected: Log, names: tuple[str, ...], tolerance: float = CLOSE) -> None:
    rows = [[row[name] for row in log if name in row] for log in (got, expected) for name in names]
    for ours, plain in zip(rows[: len(names)], rows[len(names) :], strict=True):
        assert ours == pytest.approx(plain, rel=tolerance)
        assert ours


def save_twice(folder: Path) -> dict[str, Any]:
    return {"save_strategy": "steps", "save_steps": STEPS // 2, "output_dir": str(folder)}
