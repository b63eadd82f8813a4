"""One planner used by several Python threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tensoropt_torch import _C, load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.options import PlanningTask
from tensoropt_torch.planner.space import make_planner

THREADS = 4
REPETITIONS = 3


def new_planner() -> _C.Planner:
    layers = [nn.Linear(64, 64) if index % 2 == 0 else nn.GELU() for index in range(12)]
    captured = capture(nn.Sequential(*layers), (torch.randn(32, 64),))
    return make_planner(captured, PlanningTask(captured, load_cluster("cpu")).settings(8))


def run_together(tasks: list[Callable[[], Any]]) -> list[Any]:
    """What the tasks return, each in a thread of its own, begun at the same time."""
    start = threading.Barrier(len(tasks))
    results: list[Any] = [None] * len(tasks)

    def run(index: int) -> None:
        start.wait()
        results[index] = tasks[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread waits for another one for good"
    return results


def test_what_is_made_when_first_asked_for_is_made_once() -> None:
    for repetition in range(REPETITIONS):
        alone = new_planner()
        expected = (
            alone.baseline("data parallel", 0.01).points,
            alone.random_strategy(repetition).config,
            alone.named_dims,
        )
        shared = new_planner()

        def ask(planner: _C.Planner = shared, seed: int = repetition) -> Any:
            return (
                planner.baseline("data parallel", 0.01).points,
                planner.random_strategy(seed).config,
                planner.named_dims,
            )

        def ask_reversed(planner: _C.Planner = shared, seed: int = repetition) -> Any:
            named_dims = planner.named_dims
            strategy = planner.random_strategy(seed).config
            return planner.baseline("data parallel", 0.01).points, strategy, named_dims

        tasks = [ask, ask_reversed] * (THREADS // 2)
        assert run_together(tasks) == [expected] * THREADS
