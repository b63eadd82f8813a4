"""What repeated measurements say on a calm and on a disturbed machine."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable

import pytest
import torch

from tensoropt_torch.measure.machine.clock import ComputeClock, crowding_of, undisturbed_s
from tests.distributed.harness import run_ranks

HERE = "tests.measure.machine.test_clock"
TRUE_S = 0.04


def samples(generator: random.Random, disturbed: float, count: int = 15) -> list[float]:
    """Within 2 % of the truth; a share of them takes 1.5 to 3 times as long."""
    calm = [TRUE_S * generator.uniform(0.98, 1.02) for _ in range(count)]
    odd = round(disturbed * count)
    found = [seconds * generator.uniform(1.5, 3.0) for seconds in calm[:odd]] + calm[odd:]
    generator.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_disturbed_measurements_do_not_count(seed: int) -> None:
    generator = random.Random(seed)
    for disturbed in (0.0, 1 / 3, 0.6):
        found = undisturbed_s(samples(generator, disturbed))
        assert found == pytest.approx(TRUE_S, rel=0.02), (seed, disturbed)
    assert statistics.median(samples(generator, 0.6)) > 1.4 * TRUE_S, seed


@pytest.mark.parametrize("seed", range(20))
def test_on_a_calm_machine_the_median_is_found(seed: int) -> None:
    calm = samples(random.Random(seed), 0.0)
    assert undisturbed_s(calm) == pytest.approx(statistics.median(calm), rel=0.02), seed


def test_few_measurements_are_enough() -> None:
    assert undisturbed_s([3.0]) == 3.0
    assert undisturbed_s([1.0, 5.0]) == 2.0
    assert undisturbed_s([5.0, 1.0, 2.0, 9.0, 3.0]) == 2.0


def elapsed_s(clock: ComputeClock, work: Callable[[], object]) -> float:
    start = clock.now()
    work()
    return clock.now() - start


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_where_cores_are_shared_work_counts_and_waiting_does_not() -> None:
    alone, crowded = (ComputeClock(torch.device("cpu"), crowding) for crowding in (1.0, 2.0))
    assert alone.counts_waiting and not crowded.counts_waiting
    assert elapsed_s(alone, lambda: time.sleep(0.1)) >= 0.1
    assert elapsed_s(crowded, lambda: time.sleep(0.1)) < 0.05
    assert elapsed_s(crowded, lambda: compute(0.1)) == pytest.approx(0.2, rel=0.2)


def found_crowding(_: None) -> float:
    return crowding_of(torch.device("cpu"))


def test_how_crowded_a_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = 3 / len(os.sched_getaffinity(0))
    assert run_ranks(3, f"{HERE}:found_crowding") == [pytest.approx(max(1.0, expected))] * 3
    assert crowding_of(torch.device("cuda")) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert crowding_of(torch.device("cpu")) == 1
