"""What follows from comparing predictions with measurements."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from tensoropt_torch.calibration.runs import Reference, RepeatedTimes, StepTimes, run_in_passes
from tensoropt_torch.calibration.validation import (
    FEW_STRATEGIES,
    ValidatedStrategy,
    Validation,
    mean_error,
    spearman,
)


def rows(ratios: list[float]) -> Validation:
    """Measured memory over the sum; simulated peaks are twice the sums."""
    return Validation(
        tuple(
            ValidatedStrategy(i, 2.0, 1.0, 1.0, 2.0, 100.0, 200.0, 100.0 * r)
            for i, r in enumerate(ratios)
        )
    )


def slow_spearman(a: list[float], b: list[float]) -> float:
    """By the definition: Pearson's correlation of mean ranks."""

    def ranks(values: list[float]) -> list[float]:
        return [
            sum(other < v for other in values) + (sum(other == v for other in values) - 1) / 2
            for v in values
        ]

    x, y = ranks(a), ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    cov = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    var = sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y)
    return cov / math.sqrt(var)


@pytest.mark.parametrize("seed", range(20))
def test_spearman_is_the_correlation_of_ranks(seed: int) -> None:
    generator = random.Random(seed)
    count = generator.randint(3, 12)
    a = [float(generator.randint(0, 5)) for _ in range(count)] + [9.0]
    b = [float(generator.randint(0, 5)) for _ in range(count)] + [9.0]
    assert spearman(a, b) == pytest.approx(slow_spearman(a, b)), seed


def test_spearman_sees_order_only() -> None:
    assert spearman([1, 2, 3], [1, 10, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isnan(spearman([1, 1], [1, 2]))


def test_errors_are_relative_to_what_was_measured() -> None:
    assert mean_error([(2.0, 1.0), (1.0, 2.0)]) == pytest.approx(0.75)
    assert mean_error([(2.0, 1.0), (1.0, 0.0)]) == pytest.approx(1.0)
    assert math.isnan(mean_error([(1.0, 0.0)]))
    found = rows([1.0])
    assert (found.step_error, found.network_error, found.memory_error()) == (1.0, 0.5, 0.0)
    assert found.memory_error("simulated") == 1.0


def test_the_memory_limit_follows_the_worst_prediction() -> None:
    many = [1.0] * (FEW_STRATEGIES - 1)
    assert rows([*many, 1.25]).memory_fraction("sums", 0.9) == pytest.approx(0.8)
    assert rows([*many, 1.02]).memory_fraction("sums", 0.9) == pytest.approx(1 / 1.02)
    assert rows([0.5] * FEW_STRATEGIES).memory_fraction("sums", 0.9) == 1.0


def test_the_memory_limit_follows_the_predictor_that_picks() -> None:
    many = [1.0] * (FEW_STRATEGIES - 1)
    assert rows([*many, 2.5]).memory_fraction("sums", 0.9) == pytest.approx(0.4)
    assert rows([*many, 2.5]).memory_fraction("simulated", 0.9) == pytest.approx(0.8)


def test_few_strategies_do_not_loosen_the_limit() -> None:
    assert rows([1.0]).memory_fraction("sums", 0.9) == 0.9
    assert rows([2.0]).memory_fraction("sums", 0.9) == pytest.approx(0.5)


def test_runs_of_a_plan_lie_a_whole_pass_apart() -> None:
    """A machine that is disturbed during one pass: the times of the other one count."""
    order: list[int] = []

    def run(index: int) -> StepTimes:
        number = order.count(index)
        order.append(index)
        slower = 3.0 if number == index % 2 else 1.0
        return StepTimes(slower * (index + 1), 0.0, index + 10.0 * number)

    seen: list[tuple[int, int]] = []
    found = run_in_passes(
        [lambda index=index: run(index) for index in range(4)],
        passes=2,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert order == [0, 1, 2, 3, 0, 1, 2, 3]
    assert seen == [(done, 8) for done in range(1, 9)]
    assert [times.fastest.step_s for times in found] == [1.0, 2.0, 3.0, 4.0]
    # The network's time is of the same run.
    assert [times.fastest.network_s for times in found] == [10.0, 1.0, 12.0, 3.0]
    assert [times.spread for times in found] == pytest.approx([2.0] * 4)


def test_runs_on_a_slow_machine_are_repeated() -> None:
    """Slow while the first pass meets the last two of four plans, and long after for the
    very last; what is repeated is counted."""
    speeds = iter([1.0] * 4 + [1.5] * 4 + [1.1, 1.0] + [1.5, 1.5] * 9)
    count = 0

    def run() -> StepTimes:
        nonlocal count
        count += 1
        return StepTimes(1.0, 0.0, 0.0)

    seen: list[tuple[int, int]] = []
    run_in_passes(
        [run] * 4, 1, lambda done, total: seen.append((done, total)), lambda: next(speeds)
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4), (5, 6), (6, 6)]
    assert count == 6  # the first of the two is calm then, the other one is given up


def test_the_reference_takes_time_on_one_process() -> None:
    reference = Reference(torch.device("cpu"))
    assert reference() > 0


def test_a_single_run_says_nothing_about_noise() -> None:
    (found,) = run_in_passes([lambda: StepTimes(1.0, 0.0, 0.0)], passes=1)
    assert found == RepeatedTimes(StepTimes(1.0, 0.0, 0.0), None)
    assert math.isnan(rows([1.0]).spread)


def test_disturbed_strategies_are_left_out_beside_the_whole() -> None:
    """Two that were predicted well and one whose runs differ by 60 %."""
    row = ValidatedStrategy(0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.05)
    slow = replace(row, seed=1, step_s=2.0, measured_step_s=2.0, spread=0.25)
    odd = replace(row, seed=2, step_s=1.5, measured_step_s=3.0, network_s=3.0, spread=0.6)
    found = Validation((row, slow, odd))
    assert found.spread == pytest.approx(0.3)
    record = found.to_record()
    assert record["step_error"] == pytest.approx(0.5 / 3)
    assert record["network_error"] == pytest.approx(2.0 / 3)
    assert record["rank_correlation"] == pytest.approx(0.5)
    assert record["spread"] == pytest.approx(0.3)
    calm = {"strategies": 2, "step_error": 0.0, "network_error": 0.0, "rank_correlation": 1.0}
    assert record["undisturbed"] == pytest.approx(calm)
    assert [entry["spread"] for entry in record["rows"]] == [0.05, 0.25, 0.6]
