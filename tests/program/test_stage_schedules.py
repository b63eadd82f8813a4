"""Schedules of pipelines: who does what, that nobody waits for ever, and known figures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.program.stage_schedules import (
    ReceiveValues,
    RunBackward,
    RunForward,
    ScheduleName,
    SendValues,
    StageSchedule,
    gpipe,
    in_flight,
    interleaved,
    one_forward_one_backward,
    schedules_of,
)
from tensoropt_torch.program.stage_times import StageTimes, timeline

SIZES = list(itertools.product((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 8)))


def equal_times(parts: int, forward_s: float = 1.0, backward_s: float = 2.0) -> StageTimes:
    return StageTimes((forward_s,) * parts, (backward_s,) * parts)


def assert_complete(schedules: Sequence[StageSchedule]) -> None:
    """Every chunk runs every micro-batch once, forward before backward, and reduces in the last
    backward alone; what is sent is what the next part receives, in this order."""
    for schedule in schedules:
        every = set(itertools.product(range(schedule.micro_batches), range(schedule.chunks)))
        forwards = [a for a in schedule.computes if isinstance(a, RunForward)]
        backwards = [a for a in schedule.computes if isinstance(a, RunBackward)]
        for runs in (forwards, backwards):
            assert len(runs) == len(every)
            assert {(a.micro_batch, a.chunk) for a in runs} == every
        for chunk in range(schedule.chunks):
            own = [a for a in backwards if a.chunk == chunk]
            assert [a.reduces for a in own] == [False] * (len(own) - 1) + [True]
            before: set[int] = set()
            for action in schedule.computes:
                if action.chunk == chunk and isinstance(action, RunForward):
                    before.add(action.micro_batch)
                elif action.chunk == chunk:
                    assert action.micro_batch in before
    for first, second in itertools.pairwise(schedules):
        for chunk in range(first.chunks):
            sent = [a for a in first.call if isinstance(a, SendValues) and a.chunk == chunk]
            got = [a for a in second.call if isinstance(a, ReceiveValues) and a.chunk == chunk]
            numbers = [a.micro_batch for a in sent]
            assert numbers == [a.micro_batch for a in got] == list(range(first.micro_batches))


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_nobody_waits_for_ever(name: ScheduleName) -> None:
    for stages, count in SIZES:
        schedules = schedules_of(name, stages, count)
        assert_complete(schedules)
        found = timeline(schedules, equal_times(stages))
        assert found.step_s == (count + stages - 1) * 3
        assert found.busy_s == (count * 3,) * stages
        assert found.in_flight == tuple(in_flight(name, s, stages, count) for s in range(stages))


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_nobody_waits_for_ever_with_chunks(chunks: int) -> None:
    for stages, count in SIZES:
        schedules = interleaved(stages, count, chunks)
        assert_complete(schedules)
        found = timeline(schedules, equal_times(stages * chunks))
        if count % stages == 0:
            # The bubble is a share of that of 1F1B, whose parts are as long as all chunks.
            assert found.step_s == pytest.approx(count * chunks * 3 + (stages - 1) * 3)
            for stage in range(stages):
                ahead = (chunks - 1) * stages + 2 * (stages - 1 - stage)
                assert found.in_flight[stage] == min(ahead + 1, count * chunks)


def test_one_forward_one_backward_keeps_few_in_flight() -> None:
    first, second, third = one_forward_one_backward(3, 5)
    assert str(first) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert str(second) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert str(third) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"
    assert [schedule.in_flight for schedule in (first, second, third)] == [3, 2, 1]
    assert [schedule.in_flight for schedule in gpipe(3, 5)] == [5, 5, 5]


def test_fewer_micro_batches_than_stages() -> None:
    assert [str(s) for s in one_forward_one_backward(4, 2)] == [
        "F0 F1 B0 B1",
        "F0 F1 B0 B1",
        "F0 F1 B0 B1",
        "F0 B0 F1 B1",
    ]


def test_unequal_stages_take_at_least_what_the_slowest_does() -> None:
    seed = random.randrange(2**32)
    chosen = random.Random(seed)
    for _ in range(50):
        stages, count = chosen.randint(2, 6), chosen.randint(1, 12)
        forward = tuple(chosen.uniform(0.5, 2) for _ in range(stages))
        times = StageTimes(forward, tuple(2 * t for t in forward))
        found = timeline(one_forward_one_backward(stages, count), times)
        every = [3 * t for t in forward]
        least = max(sum(every), count * max(every)) - 1e-9
        eager = timeline(gpipe(stages, count), times)
        for step_s in (found.step_s, eager.step_s):
            assert least <= step_s <= sum(every) * count + 1e-9, f"seed {seed}"


def test_transfers_are_waited_for() -> None:
    times = replace(equal_times(2), values_s=(0.5,), gradients_s=(0.25,))
    assert timeline(one_forward_one_backward(2, 1), times).step_s == 1 + 0.5 + 1 + 2 + 0.25 + 2
    slow = replace(equal_times(2), values_s=(10.0,))
    # The link is the bottleneck: the third value arrives at 1 + 3 * 10.
    assert timeline(gpipe(2, 3), slow).spans[-1].end_s >= 31


def test_ends_of_steps_are_added() -> None:
    times = replace(equal_times(2), step_s=(0.0, 5.0))
    plain = timeline(one_forward_one_backward(2, 4), equal_times(2))
    assert plain.bubble == pytest.approx(1 / 5)
    last = max(span.end_s for span in plain.spans if span.stage == 1)
    found = timeline(one_forward_one_backward(2, 4), times).step_s
    assert found == max(plain.step_s, last + 5)


def test_lists_that_wait_for_each_other() -> None:
    first, second = one_forward_one_backward(2, 2)
    late = tuple(action for action in first.call if not isinstance(action, SendValues))
    with pytest.raises(TensorOptError, match="wait for each other: stage 0 for ReceiveGradients"):
        timeline([replace(first, call=late), second], equal_times(2))


def test_what_is_no_schedule() -> None:
    with pytest.raises(TensorOptError, match="not known"):
        schedules_of("zb", 2, 2)  # type: ignore[arg-type]
    with pytest.raises(TensorOptError, match="chunks=1"):
        schedules_of("1f1b", 2, 2, 2)
    with pytest.raises(TensorOptError, match="micro_batches = 0"):
        gpipe(2, 0)
