"""The closed form of a step of a pipeline, against the lists of actions run with the same times."""

from __future__ import annotations

import random

import pytest

from tensoropt_torch import _C, TensorOptError
from tensoropt_torch.program.stage_schedules import ScheduleName, schedules_of
from tensoropt_torch.program.stage_times import StageTimes, timeline

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe")


def off(seed: int, schedule: ScheduleName, unequal: float, transfers: float) -> float:
    """By what share the closed form is longer than the simulation of a random pipeline, whose
    stages take up to ``unequal`` more or less than others, and transfers up to ``transfers`` of
    that."""
    chosen = random.Random(seed)
    stages, micro_batches = chosen.choice([2, 3, 4, 8]), chosen.choice([1, 2, 4, 8, 16, 32])
    both = [chosen.uniform(1 - unequal, 1 + unequal) for _ in range(stages)]
    ratios = [chosen.uniform(1.6, 2.4) for _ in range(stages)]
    forward = tuple(t / (1 + r) for t, r in zip(both, ratios, strict=True))
    backward = tuple(t - f for t, f in zip(both, forward, strict=True))
    sent = tuple(chosen.uniform(0, transfers) for _ in range(stages - 1))
    schedules = schedules_of(schedule, stages, micro_batches)
    simulated = timeline(schedules, StageTimes(forward, backward, sent, sent)).step_s
    twice = [*(2 * seconds for seconds in sent), 0.0]
    times = [_C.StageTime(*given) for given in zip(forward, backward, twice, strict=True)]
    return float(_C.pipeline_step_s(times, micro_batches, schedule)) / simulated - 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("unequal", "transfers"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.05)])
def test_it_is_within_two_percent(schedule: ScheduleName, unequal: float, transfers: float) -> None:
    errors = [off(seed, schedule, unequal, transfers) for seed in range(200)]
    assert max(errors) <= 1e-12, "it is longer than a step"
    assert min(errors) >= (-0.02 if unequal else -1e-12)
    assert sum(errors) / len(errors) >= -0.003


def test_it_is_close_where_transfers_are_long() -> None:
    errors = [off(seed, "1f1b", 0.3, 0.5) for seed in range(200)]
    assert min(errors) >= -0.16
    assert sum(errors) / len(errors) >= -0.02
    assert min(off(seed, "gpipe", 0.3, 3.0) for seed in range(200)) >= -1e-12


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_is_never_longer_than_a_step(schedule: ScheduleName) -> None:
    first = random.randrange(2**32)
    errors = [off(first + number, schedule, 0.9, number % 7 / 2) for number in range(300)]
    assert max(errors) <= 1e-12, first


def test_a_step_has_micro_batches() -> None:
    with pytest.raises(TensorOptError, match="micro_batches = 0"):
        _C.pipeline_step_s([_C.StageTime(1.0, 2.0)], 0)


def test_interleaved_has_none() -> None:
    with pytest.raises(TensorOptError, match="schedule = 'interleaved' has no closed form"):
        _C.pipeline_step_s([_C.StageTime(1.0, 2.0)], 2, "interleaved")
