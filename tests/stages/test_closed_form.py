"""The closed form of a step of a pipeline, against the lists of actions run with the same times."""

from __future__ import annotations

import random

import pytest

from tensoropt_torch import _C, TensorOptError
from tensoropt_torch.program.stage_schedules import one_forward_one_backward
from tensoropt_torch.program.stage_times import StageTimes, timeline


def off(seed: int, unequal: float, transfers: float) -> float:
    """By what share the closed form is longer than the simulation of a random pipeline, whose
    stages take up to ``unequal`` more or less than others, and transfers up to ``transfers`` of
    that."""
    chosen = random.Random(seed)
    stages, micro_batches = chosen.choice([2, 3, 4, 8]), chosen.choice([1, 2, 4, 8, 16, 32])
    both = [chosen.uniform(1 - unequal, 1 + unequal) for _ in range(stages)]
    ratios = [chosen.uniform(1.6, 2.4) for _ in range(stages)]
    forward = tuple(t / (1 + r) for t, r in zip(both, ratios, strict=True))
    backward = tuple(t - f for t, f in zip(both, forward, strict=True))
    values = tuple(chosen.uniform(0, transfers) for _ in range(stages - 1))
    gradients = tuple(chosen.uniform(0, transfers) for _ in range(stages - 1))
    schedules = one_forward_one_backward(stages, micro_batches)
    simulated = timeline(schedules, StageTimes(forward, backward, values, gradients)).step_s
    sent = [*(v + g for v, g in zip(values, gradients, strict=True)), 0.0]
    times = [_C.StageTime(*given) for given in zip(forward, backward, sent, strict=True)]
    return float(_C.pipeline_step_s(times, micro_batches)) / simulated - 1


@pytest.mark.parametrize(("unequal", "transfers"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.05)])
def test_it_is_within_two_percent(unequal: float, transfers: float) -> None:
    errors = [abs(off(seed, unequal, transfers)) for seed in range(200)]
    assert max(errors) <= (0.02 if unequal else 1e-12)
    assert sum(errors) / len(errors) <= 0.003


def test_other_random_pipelines_are_close_on_average() -> None:
    first = random.randrange(2**32)
    errors = [abs(off(first + number, 0.6, 0.2)) for number in range(200)]
    assert sum(errors) / len(errors) <= 0.015, first


def test_a_step_has_micro_batches() -> None:
    with pytest.raises(TensorOptError, match="micro_batches = 0"):
        _C.pipeline_step_s([_C.StageTime(1.0, 2.0)], 0)
