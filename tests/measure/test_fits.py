"""Scales of few and of many steps."""

from __future__ import annotations

import random
import statistics

import pytest

from tensoropt_torch.measure.fits import (
    UNEXPECTED,
    Scales,
    TimedPlan,
    scales_of,
    scales_of_steps,
)


def row(
    predicted: tuple[float, float], measured: tuple[float, float], collectives: float = 0
) -> TimedPlan:
    """Of (computing, network) in s."""
    return TimedPlan(sum(predicted), sum(measured), predicted[1], measured[1], collectives)


def row_of(made: Scales, predicted: tuple[float, float], collectives: float) -> TimedPlan:
    """One that took what the scales say."""
    network_s = made.network * predicted[1] + made.collective_s * collectives
    return row(predicted, (made.compute * predicted[0], network_s), collectives)


@pytest.mark.parametrize("seed", range(5))
def test_scales_are_those_that_many_steps_were_made_with(seed: int) -> None:
    generator = random.Random(seed)
    delay_s = generator.uniform(-0.005, 0.02)
    made = Scales(generator.uniform(0.5, 3), generator.uniform(0.5, 3), delay_s)
    rows = []
    for index in range(9):
        networked = index % 3 > 0
        predicted = generator.uniform(1, 2), generator.uniform(1, 2) * networked
        rows.append(row_of(made, predicted, generator.randrange(1, 50) * networked))
    rows[0] = row((1.0, 1.0), (100.0, 100.0), 5)  # one that something disturbed
    found = scales_of(rows)
    assert found.compute == pytest.approx(made.compute), seed
    assert found.network == pytest.approx(made.network), seed
    assert found.collective_s == pytest.approx(made.collective_s), seed
    for index in range(1, 9):
        step_s, network_s = found.times(rows[index])
        assert step_s == pytest.approx(rows[index].measured_step_s), (seed, index)
        assert network_s == pytest.approx(rows[index].measured_network_s), (seed, index)


@pytest.mark.parametrize("seed", range(10))
def test_seconds_that_gain_next_to_nothing_are_not_taken(seed: int) -> None:
    """Of strategies with a collective for every 300 us, measured with noise."""
    generator = random.Random(seed)
    rows = []
    for _ in range(12):
        collectives = generator.randint(60, 140)
        network_s = 3e-4 * collectives * generator.uniform(0.98, 1.02)
        measured_s = 1.1 * network_s * generator.uniform(0.97, 1.03)
        rows.append(row((0.05, network_s), (0.05, measured_s), collectives))
    found = scales_of(rows)
    assert abs(found.collective_s) * 100 < 0.5 * 0.033, (seed, found)
    assert found.network == pytest.approx(1.1, rel=0.5), (seed, found)


def test_nothing_measured_scales_nothing() -> None:
    assert scales_of([row((1.0, 0.0), (2.0, 0.0))]) == Scales(2.0, 1.0)


@pytest.mark.parametrize("seed", range(10))
def test_scales_of_steps_are_those_that_they_were_made_with(seed: int) -> None:
    """As soon as there are enough of them, of which one was disturbed."""
    generator = random.Random(seed)
    made = Scales(generator.uniform(0.5, 3), 1.0, generator.choice([0.0, 0.01]))
    rows = []
    for _ in range(6):
        predicted = generator.uniform(1, 2), generator.uniform(0.1, 2)
        rows.append(row_of(made, predicted, generator.randrange(1, 100)))
    rows[generator.randrange(6)] = row((1.0, 1.0), (4.0, 9.0), 5)
    found = scales_of_steps(rows)
    assert found.compute == pytest.approx(made.compute), seed
    assert found.network == pytest.approx(1.0), seed
    assert found.collective_s == pytest.approx(made.collective_s, abs=1e-9), seed


def objective(rows: list[TimedPlan], scales: Scales) -> float:
    """Errors of steps, and what is not expected of the scales."""
    computing = ((r.measured_step_s - r.measured_network_s, r.step_s - r.network_s) for r in rows)
    ratio = statistics.median(measured / predicted for measured, predicted in computing)
    share = sum(r.collectives / r.measured_step_s for r in rows) / len(rows)
    errors = [abs(scales.times(r)[0] / r.measured_step_s - 1) for r in rows]
    unexpected = abs(scales.compute / ratio - 1) + abs(scales.network - 1)
    return sum(errors) + UNEXPECTED * (unexpected + scales.collective_s * share)


def any_rows(generator: random.Random) -> list[TimedPlan]:
    """From one to five of a model that waits in each collective."""
    compute, network = generator.uniform(1, 3), generator.uniform(0.5, 3)
    delay_s = generator.choice([0.0, 0.002, 0.01])
    rows = []
    for _ in range(generator.randint(1, 5)):
        predicted = generator.uniform(0.5, 1), generator.uniform(0.05, 1)
        collectives = generator.randint(1, 40)
        measured_s = compute * predicted[0], network * predicted[1] + delay_s * collectives
        noisy = tuple(seconds * generator.uniform(0.9, 1.1) for seconds in measured_s)
        rows.append(row(predicted, (noisy[0], noisy[1]), collectives))
    return rows


@pytest.mark.parametrize("with_seconds", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_no_other_scales_are_better(seed: int, with_seconds: bool) -> None:
    generator = random.Random(seed)
    rows = any_rows(generator)
    found = scales_of_steps(rows, with_seconds)
    assert found.collective_s == 0 or with_seconds
    least = objective(rows, found)
    for _ in range(2000):
        width = 10 ** generator.uniform(-6, 0)
        other = Scales(
            found.compute * (1 + width * generator.uniform(-1, 1)),
            found.network * (1 + width * generator.uniform(-1, 1)),
            max(0.0, found.collective_s + width * generator.uniform(-0.01, 0.01)) * with_seconds,
        )
        assert objective(rows, other) >= least * (1 - 1e-9), (seed, other)


def test_collectives_that_were_not_run_take_what_is_predicted() -> None:
    """Two plans whose collectives are small tell little of large ones: that ranks wait in each
    is nearer than that the network takes three times as long."""
    rows = [row((0.034, 0.002), (0.080, 0.0045), 4), row((0.033, 0.005), (0.073, 0.015), 12)]
    found = scales_of_steps(rows)
    assert found.network == pytest.approx(1.0)
    large = row((0.044, 0.056), (0.0, 0.0), 5)
    assert found.times(large)[1] < 1.1 * 0.056 < scales_of(rows).times(large)[1] / 2
    for given in rows:
        assert found.times(given)[0] == pytest.approx(given.measured_step_s)


@pytest.mark.parametrize("collectives", [0, 3])
def test_one_step_is_predicted_as_it_was_measured(collectives: int) -> None:
    given = row((1.0, 0.5), (2.0, 0.7), collectives)
    assert scales_of_steps([given]).times(given)[0] == pytest.approx(2.7)
    alone = row((1.0, 0.0), (2.0, 0.0))
    assert scales_of_steps([alone]) == Scales(2.0, 1.0)
