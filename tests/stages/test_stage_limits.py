"""What of stages' frontiers is left out beside known strategies is of no use."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest

from tensoropt_torch import _C, TensorOptError
from tensoropt_torch.program.stage_schedules import ScheduleName
from tensoropt_torch.staging.bounds import least_step

Points = list[tuple[float, float]]


def frontier(chosen: random.Random, work: float) -> Points:
    """Of a stage with about so much work."""
    count = chosen.randint(1, 6)
    memories = sorted(chosen.uniform(0.5, 2) * work for _ in range(count))
    times = sorted((chosen.uniform(0.7, 1.6) * work for _ in range(count)), reverse=True)
    return list(zip(memories, times, strict=True))


def unbeaten(points: Iterable[tuple[float, float]]) -> Points:
    kept: Points = []
    for memory, time in sorted(points):
        if not kept or time < kept[-1][1]:
            kept.append((memory, time))
    return kept


class Case:
    """A random pipeline, what its stages may be, and strategies that are known."""

    def __init__(self, seed: int) -> None:
        chosen = random.Random(seed)
        self.stages = chosen.randint(1, 4)
        self.micro_batches = chosen.choice([1, 2, 4, 8])
        self.end = self.stages + chosen.randint(0, 4)
        cuts = range(self.end + 1)
        self.offered = [
            (stage, first, last, chosen.uniform(0, 0.05), frontier(chosen, float(last - first)))
            for stage in range(self.stages)
            for first, last in itertools.combinations(cuts, 2)
            if chosen.random() < 0.9
        ]
        scale = chosen.uniform(0.8, 2.5) * self.end / self.stages
        known = [(chosen.uniform(0.3, 2) * scale, chosen.uniform(0.5, 2) * scale) for _ in range(9)]
        self.known = unbeaten(known[: chosen.randint(0, 9)])

    def found(self, frontiers: Sequence[Points]) -> Points:
        """Pipelines of these frontiers."""
        shape = self.shape
        composed = _C.compose_pipelines(self.choices(frontiers), shape)
        return [(one.memory_bytes, one.time_s) for one in composed]

    @property
    def shape(self) -> _C.PipelineShape:
        return _C.PipelineShape(
            stages=self.stages, micro_batches=self.micro_batches, end=self.end, memory_step=0.0
        )

    def choices(self, frontiers: Sequence[Points]) -> list[_C.StageChoice]:
        return [
            _C.StageChoice(
                stage=stage, first_cut=first, last_cut=last, transfer_s=sent, points=points
            )
            for (stage, first, last, sent, _), points in zip(self.offered, frontiers, strict=True)
        ]


def useful(points: Points, known: Points, longest: Sequence[float]) -> Points:
    """Without what takes longer than is of use."""
    memories = [0.0, *(memory for memory, _ in known)]
    return [
        (memory, time)
        for memory, time in points
        if all(
            time <= most for least, most in zip(memories, longest, strict=True) if least <= memory
        )
    ]


def test_what_is_left_out_is_matched() -> None:
    first = random.randrange(2**32)
    left_out = 0
    for seed in range(first, first + 300):
        case = Case(seed)
        whole = [points for *_, points in case.offered]
        least = case.choices([[(points[0][0], points[-1][1])] for points in whole])
        longest = _C.longest_useful(least, case.shape, case.known)
        few = [
            useful(points, case.known, most) for points, most in zip(whole, longest, strict=True)
        ]
        left_out += sum(map(len, whole)) - sum(map(len, few))
        expected = unbeaten([*case.found(whole), *case.known])
        assert unbeaten([*case.found(few), *case.known]) == expected, seed
    assert left_out > 1000, first


def test_nothing_known_leaves_nothing_out() -> None:
    choices = [
        _C.StageChoice(stage=0, first_cut=0, last_cut=1, points=[(1.0, 1.0)]),
        _C.StageChoice(stage=1, first_cut=1, last_cut=2, points=[(1.0, 1.0)]),
        _C.StageChoice(stage=0, first_cut=0, last_cut=2, points=[(1.0, 1.0)]),  # leads nowhere
    ]
    shape = _C.PipelineShape(stages=2, micro_batches=2, end=2)
    assert _C.longest_useful(choices, shape, []) == [[float("inf")], [float("inf")], [0.0]]
    with pytest.raises(TensorOptError, match="beaten by a neighbour"):
        _C.longest_useful(choices, shape, [(1.0, 1.0), (2.0, 1.0)])


def test_no_step_is_shorter_than_the_least() -> None:
    first = random.randrange(2**32)
    for seed in range(first, first + 2000):
        chosen = random.Random(seed)
        stages, micro_batches = chosen.choice([2, 3, 4, 8, 16]), chosen.choice([1, 2, 4, 8, 32])
        uneven = chosen.choice([0.0, 0.3, 0.9, 1.0])
        both = [1 + uneven * chosen.uniform(-1, 5) for _ in range(stages)]
        times = [_C.StageTime(t / 3, t * 2 / 3) for t in both]
        schedule: ScheduleName = chosen.choice(["1f1b", "gpipe"])
        step = _C.pipeline_step_s(times, micro_batches, schedule)
        least = least_step(schedule, stages, micro_batches)
        assert step >= least * sum(both) / stages * (1 - 1e-9), seed
