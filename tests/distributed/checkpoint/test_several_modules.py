"""Saving modules of one job that have different numbers of stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tensoropt_torch import TensorOptError, find_stages, parallelize, save
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.checkpoint.test_several_modules"
ORDER = (2, 4, 2)


def saved(folder: str) -> str:
    """A file for each module; what is said where two are saved as one."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    given: dict[str, Any] = {"loss_fn": nn.MSELoss(), "targets": (y,)}
    made = []
    for number, stages in enumerate(ORDER):
        torch.manual_seed(number)
        one = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        plan = find_stages(one, (x,), stages=stages, micro_batches=4, measure=False, **given)
        made.append(parallelize(one, plan, (x,), **given))
        save(made[-1].state_dict(), f"{folder}/{number}.pt")
    both = {"one": made[0].state_dict(), "other": made[1].state_dict()}
    try:
        save(both, f"{folder}/both.pt")
    except TensorOptError as error:
        return str(error)
    return "nothing was said"


def test_each_is_put_together_by_its_own_stages(tmp_path: Path) -> None:
    texts = run_ranks(4, f"{HERE}:saved", str(tmp_path), 120)
    for text in texts:
        assert "parts of modules in 2 and in 4 stages" in text
    for number in range(len(ORDER)):
        torch.manual_seed(number)
        one = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        for name, value in torch.load(tmp_path / f"{number}.pt").items():
            assert torch.equal(value, one.state_dict()[name]), name
