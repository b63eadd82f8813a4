"""One search space used by several Python threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tensoropt_torch import _C, load_cluster
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.space.search_space import make_space

THREADS = 4
REPETITIONS = 100


@pytest.fixture(autouse=True)
def often_switched() -> Iterator[None]:
    """Threads are switched as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_together(task: Callable[[], Any]) -> list[Any]:
    """What the task returns in several threads that begin it at the same time."""
    start = threading.Barrier(THREADS)
    results: list[Any] = []

    def run() -> None:
        start.wait()
        results.append(task())

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "a thread waits for another one for good"
    return results


def ask(space: _C.SearchSpace) -> Any:
    points = space.baseline("data parallel", 0.01, 1).points
    return points, space.random_strategy(1).config, space.named_dims


def test_what_is_made_when_first_asked_for_is_made_once() -> None:
    captured = capture(nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)]), (torch.ones(32, 16),))
    settings = PlanningTask(captured, load_cluster("cpu")).settings(4)
    expected = ask(make_space(captured, settings))
    for _ in range(REPETITIONS):
        space = make_space(captured, settings)
        assert run_together(lambda space=space: ask(space)) == [expected] * THREADS
