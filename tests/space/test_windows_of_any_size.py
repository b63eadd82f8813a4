"""Convolutions whose outputs are longer or shorter than their inputs have spaces on any number of
devices."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from tensoropt_torch.config import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

DEVICES = (2, 3, 4, 8)


class Windows(nn.Module):
    """A projection, and a convolution over what was its rows."""

    def __init__(self, kernel: int, padding: int) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.convolve = nn.Conv1d(8, 8, kernel, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, length, 8) to a number."""
        length = x.shape[1]
        return self.convolve(self.project(x).transpose(1, 2))[..., :length].square().mean()


def check(kernel: int, padding: int, length: int) -> None:
    captured = capture(Windows(kernel, padding), (torch.randn(4, length, 8),))
    task = PlanningTask(captured, load_cluster("cpu"))
    for devices in DEVICES:
        assert make_space(captured, task.settings(devices)).complete


@pytest.mark.parametrize("length", [6, 9, 96])
def test_causal_convolutions_of_an_even_kernel(length: int) -> None:
    """As of Mamba, where input and output have a third of their entries in common."""
    assert math.gcd(length, length + 3) == 3
    check(4, 3, length)


@pytest.mark.parametrize("seed", range(12))
def test_random_windows(seed: int) -> None:
    chosen = random.Random(seed)
    kernel, length = chosen.randint(2, 7), chosen.choice([10, 12, 15, 18, 20, 24, 30, 35])
    check(kernel, chosen.randint(0, kernel - 1), length)
