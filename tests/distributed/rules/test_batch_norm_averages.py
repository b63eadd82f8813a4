"""Batch normalisation whose running statistics are averages of all batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn

import tensoropt_torch
from tensoropt_torch.errors import TensorOptError
from tests.distributed.harness import run_ranks
from tests.distributed.kinds import Kind

HERE = "tests.distributed.rules.test_batch_norm_averages"


class Averaging(nn.Module):
    """Layers with ``momentum=None`` beside others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norms = nn.ModuleList(
            [
                nn.BatchNorm2d(6, momentum=None),
                nn.BatchNorm2d(6, momentum=None, affine=False),
                nn.BatchNorm2d(6, momentum=None, track_running_stats=False),
                nn.BatchNorm2d(6, momentum=0.3),
                nn.BatchNorm2d(6, momentum=None),
            ]
        )
        self.last = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        for norm in self.norms:
            hidden = torch.tanh(norm(hidden)) + hidden
        return F.cross_entropy(self.last(hidden.mean((2, 3))), y)


def batches(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(rows, 3, 6, 6), torch.randint(5, (rows,))) for rows in sizes]


def trained() -> Kind:
    return Kind(Averaging, batches(8, 8, 8, 6))


class Plain(nn.Module):
    """Layers with a momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.head(self.norm(self.body(x)).tanh())
        return hidden


def _updated(module: Any, x: torch.Tensor) -> torch.Tensor:
    """After averaging weights: statistics of all batches, by PyTorch's own function."""
    update_bn([x, 2 * x, x + 1], module)
    loss: torch.Tensor = module(x).square().mean()
    return loss


def updated_by_pytorch() -> Kind:
    torch.manual_seed(3)
    return Kind(Plain, [(torch.randn(8, 4),), (torch.randn(8, 4),)], step=_updated)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["trained", "updated_by_pytorch"])
def test_averages_of_all_batches_are_those_of_one_process(kind: str, world: int) -> None:
    assert run_ranks(world, "tests.distributed.kinds:check", f"{HERE}:{kind}") == [[]] * world


def test_averages_of_whole_batches_are_refused_where_groups_are_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None))
    with pytest.raises(TensorOptError, match=r"momentum=None .* batch_norm_groups=2"):
        tensoropt_torch.find_frontier(
            model, (torch.randn(8, 4),), cluster="cpu", num_devices=2, batch_norm_groups=2
        )
