"""Runs of plans that share their process groups."""

from __future__ import annotations

import torch

from benchmarks.memory.models import make
from benchmarks.training import Trainer
from tensoropt_torch import load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tests.distributed.harness import run_ranks

HERE = "tests.benchmarks.test_training"


def run_plans(_: object) -> tuple[list[float], list[float]]:
    torch.set_num_threads(1)
    model, args = make("mlp")
    trainer = Trainer(model, args, PlanningTask(capture(model, args), load_cluster("cpu")))
    plans = list(trainer.random_plans(2))
    times = [trainer.start(plan).times(1).step_s for plan in plans]
    trainer.close()
    return [plan.time_s for plan in plans], times


def test_plans_are_random_ones_and_every_rank_has_the_same_times() -> None:
    (first, *others) = run_ranks(2, f"{HERE}:run_plans")
    predicted, times = first
    assert predicted[0] != predicted[1]
    assert all(seconds > 0 for seconds in times)
    assert all(other == first for other in others)
