"""What follows from comparing predictions with measurements."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from tensoropt_torch.measure.machine.clock import SharedClock
from tensoropt_torch.measure.runs import peak_memory
from tensoropt_torch.measure.runs.budget import Budget, OutOfTimeError
from tensoropt_torch.measure.runs.peak_memory import ENOUGH, measure_peak_bytes
from tensoropt_torch.measure.runs.training import (
    WARM_UPS,
    Reference,
    RepeatedTimes,
    StepTimes,
    Training,
    run_in_passes,
)
from tensoropt_torch.measure.runs.validation import (
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

    totals: list[int | None] = []
    runs = [lambda index=index: run(index) for index in range(4)]
    times = run_in_passes(runs, 2, lambda *_, total: totals.append(total))
    found = [RepeatedTimes.of(those) for those in times]
    assert order == [0, 1, 2, 3, 0, 1, 2, 3]
    assert totals == [8] * 8
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

    totals: list[int | None] = []
    run_in_passes([run] * 4, 1, lambda *_, total: totals.append(total), lambda: next(speeds))
    assert totals == [4, 4, 4, 4, 6, 6]
    assert count == 6  # the first of the two is calm then, the other one is given up


def test_the_reference_takes_time_on_one_process() -> None:
    reference = Reference(torch.device("cpu"))
    assert reference() > 0


def test_a_single_run_says_nothing_about_noise() -> None:
    ((times,),) = run_in_passes([lambda: StepTimes(1.0, 0.0, 0.0)], passes=1)
    assert RepeatedTimes.of([times]) == RepeatedTimes(StepTimes(1.0, 0.0, 0.0), None)
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


# --- Budgets -------------------------------------------------------------------


def small_training() -> Training:
    module = nn.Linear(4, 4)
    x = torch.ones(2, 4)
    return Training(module, torch.optim.SGD(module.parameters()), lambda: module(x).sum())


@pytest.mark.parametrize("least", [1, 3])
def test_a_run_ends_between_steps(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    training = small_training()
    made: list[StepTimes] = []

    def step(self: Training, *_: object) -> tuple[float, float, float]:
        made.append(StepTimes(1.0, 0.5, 0.25))
        return 1.0, 0.5, 0.25

    monkeypatch.setattr(Training, "_timed_step", step)
    times = training.times(5, goes_on=lambda measured: measured < least)
    assert times == StepTimes(1.0, 0.5, 0.25)
    assert len(made) == WARM_UPS + least
    with pytest.raises(OutOfTimeError):
        training.times(5, goes_on=lambda _: False)


def test_memory_is_measured_until_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once without counting, then until the least peak has come often enough."""
    training = small_training()
    peaks = iter([9, 5, 7, 5, 5, 5, 9])
    steps: list[int] = []

    @contextmanager
    def counting(_: torch.device) -> Iterator[tuple[object, object]]:
        yield lambda: None, lambda: next(peaks)

    monkeypatch.setattr(peak_memory, "_counting", counting)
    monkeypatch.setattr(peak_memory, "_held_bytes", lambda *_: 100)
    measure = partial(measure_peak_bytes, training.module, training.optimizer)
    assert measure(lambda: steps.append(1)) == 105
    assert len(steps) == 1 + 5  # 9 5 7 5 5: the fifth is the last at any rate
    peaks = iter([5, 5, 5, 4])
    assert measure(lambda: steps.append(1)) == 105
    assert len(steps) == 6 + 1 + ENOUGH
    peaks = iter([8, 5])
    assert measure(lambda: steps.append(1), goes_on=lambda counted: counted < 1) == 108
    with pytest.raises(OutOfTimeError):
        measure(lambda: steps.append(1), goes_on=lambda _: False)


def test_what_was_run_before_the_end_counts() -> None:
    """The time is over in the second pass; then in the middle of a run."""
    answers = iter([True] * 5 + [False])
    run = StepTimes(1.0, 0.0, 0.0)
    times = run_in_passes([lambda: run] * 3, 2, goes_on=lambda _: next(answers))
    assert [len(those) for those in times] == [2, 2, 1]

    def ends() -> StepTimes:
        raise OutOfTimeError

    times = run_in_passes([lambda: run, ends, lambda: run], 2)
    assert [len(those) for those in times] == [1, 0, 0]


def test_a_budget_is_spent_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(SharedClock, "now", lambda self: now)
    budget = Budget(60.0, torch.device("cpu"))
    now = 20.0
    share = budget.share(4)
    now = 29.0
    assert not share.is_spent()
    now = 30.0
    assert share.is_spent() and not budget.is_spent()
    now = 60.0
    assert budget.is_spent() and budget.share(2).is_spent()
    endless = Budget(None, torch.device("cpu"))
    assert not endless.is_spent() and not endless.share(3).is_spent()


def test_a_validation_that_ended_early_says_so() -> None:
    found = replace(rows([1.0, 1.5]), asked=8)
    assert repr(found).startswith("Validation(2 of 8 strategies; mean errors")
    assert found.undisturbed().asked == 8
    assert (found.to_record()["strategies"], found.to_record()["asked"]) == (2, 8)
    assert rows([1.0]).to_record()["asked"] == 1
    nothing = Validation((), 8)
    assert nothing.memory_fraction("sums", 0.9) == 0.9
    assert "0 of 8 strategies" in repr(nothing)


def test_peaks_that_were_not_simulated_are_left_out() -> None:
    found = Validation(tuple(replace(row, simulated_bytes=None) for row in rows([1.0, 2.0]).rows))
    assert math.isnan(found.memory_error("simulated"))
    assert found.memory_error() == pytest.approx(0.25)
    assert found.memory_fraction("simulated", 0.9) == 0.9
