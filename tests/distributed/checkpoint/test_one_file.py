"""A run in one file: written by several processes, read by one, and the other way round."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

import tensoropt_torch
from tests.distributed.harness import run_ranks

HERE = "tests.distributed.checkpoint.test_one_file"


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 16, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 4))
    layers[2].weight.requires_grad_(False)  # has no state
    return layers.double()


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [{"params": trained[:1], "lr": 1e-2}, {"params": trained[1:]}]
    return torch.optim.AdamW(groups, lr=1e-3)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, parallel: bool) -> list[float]:
    x, y = batch()
    losses = []
    for _ in range(3):
        loss = module(x, y) if parallel else F.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"all": [module.state_dict(), optimizer.state_dict()], "epoch": 3}


def check(folder: Path) -> None:
    original = model()
    x, y = batch()
    frontier = tensoropt_torch.find_frontier(original, (x,), loss_fn=F.mse_loss, targets=(y,))
    plan = frontier.smallest.plan
    ours, theirs = tensoropt_torch.parallelize(copy.deepcopy(original), plan), original
    parts = [p.to_local().shape != p.shape for p in ours.parameters() if isinstance(p, DTensor)]
    assert any(parts)
    of_ours, of_theirs = optimizer_of(ours), optimizer_of(theirs)
    assert train(ours, of_ours, True) == pytest.approx(train(theirs, of_theirs, False))
    tensoropt_torch.save(state(ours, of_ours), folder / "ours.pt")
    if dist.get_rank() == 0:
        torch.save(state(theirs, of_theirs), folder / "theirs.pt")
    dist.barrier()
    mine, other = torch.load(folder / "ours.pt"), torch.load(folder / "theirs.pt")
    assert mine["epoch"] == other["epoch"]
    for found, expected in zip(mine["all"], other["all"], strict=True):
        torch.testing.assert_close(dict(found), dict(expected))
    again = tensoropt_torch.parallelize(model(), plan)
    of_again = optimizer_of(again)
    again.load_state_dict(other["all"][0])
    tensoropt_torch.load_optimizer(of_again, other["all"][1])
    of_one = model()
    of_one.load_state_dict(mine["all"][0])
    optimizer = optimizer_of(of_one)
    optimizer.load_state_dict(mine["all"][1])
    expected = train(theirs, of_theirs, False)
    assert train(of_one, optimizer, False) == pytest.approx(expected)
    assert train(again, of_again, True) == pytest.approx(expected)
    with pytest.raises(RuntimeError, match="no folder"):
        tensoropt_torch.save(state(ours, of_ours), folder / "no folder" / "ours.pt")


def test_a_run_goes_on_in_one_process_and_in_several(tmp_path: Path) -> None:
    run_ranks(2, f"{HERE}:check", tmp_path, 100)


def check_generator(_: None) -> None:
    """What the program draws next is what it draws without ``auto_parallel``."""
    x, y = batch()
    original = model()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    tensoropt_torch.auto_parallel(original, (x,), loss_fn=F.mse_loss, targets=(y,))
    assert torch.equal(torch.get_rng_state(), before)


def test_default_random_numbers_stay_where_they_were() -> None:
    run_ranks(2, f"{HERE}:check_generator", None, 100)


def check_order(folder: Path) -> None:
    path: Any = folder / "state.pt"
    with pytest.raises(
        tensoropt_torch.TensorOptError, match=r"after the state: save\(state, path\)"
    ):
        tensoropt_torch.save(path, {"weight": torch.ones(2)})
    assert not path.exists()


def test_a_path_before_the_state_is_told(tmp_path: Path) -> None:
    check_order(tmp_path)
    run_ranks(2, f"{HERE}:check_order", tmp_path, 100)
