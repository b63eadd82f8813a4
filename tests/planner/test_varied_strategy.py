"""Random strategies of different speed."""

from __future__ import annotations

import torch
from torch import nn

from tensoropt_torch import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space, varied_strategy

SEEDS = range(30)


def test_some_are_faster_than_random_ones_and_others_alike() -> None:
    layers = [nn.Linear(64, 64) if index % 2 == 0 else nn.GELU() for index in range(16)]
    model, args = nn.Sequential(*layers), (torch.randn(32, 64),)
    captured = capture(model, args)
    space = make_space(captured, PlanningTask(captured, load_cluster("cpu")).settings(4))
    varied = sorted(varied_strategy(space, seed).time for seed in SEEDS)
    drawn = sorted(space.random_strategy(seed).time for seed in SEEDS)
    assert varied[0] < 0.7 * drawn[0]
    assert varied[len(varied) // 4] < 0.85 * drawn[0]
    assert varied[-1] > drawn[0]
    assert varied_strategy(space, 7).config == varied_strategy(space, 7).config
