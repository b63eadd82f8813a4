"""What stages may be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tensoropt_torch import TensorOptError, load_cluster
from tensoropt_torch.batches import micro_batched
from tensoropt_torch.frontend import capture
from tensoropt_torch.planner.task import PlanningTask
from tensoropt_torch.stages.intervals import CUTS_PER_STAGE, Interval, Intervals
from tensoropt_torch.staging.micro_batch_graph import MicroBatchGraph
from tests.stages.models import make

MODELS = ["llama", "gpt_tied", "skips", "masked", "transformer"]


def chains(of_stages: list[list[Interval]]) -> list[tuple[Interval, ...]]:
    """All pipelines."""
    found: list[tuple[Interval, ...]] = [()]
    for several in of_stages:
        found = [
            (*chain, one)
            for chain in found
            for one in several
            if one.first == (chain[-1].last if chain else 0)
        ]
    return found


def frontier(graph: MicroBatchGraph, interval: Interval) -> Sequence[tuple[float, float]]:
    """Of an interval in one of two stages; none where it cannot be one."""
    try:
        space = graph.stage_space(2, interval)
    except TensorOptError:
        return []
    space.build_in_flight([2])
    return graph.searched(space, 2)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stages", [2, 3])
def test_each_is_part_of_a_whole_pipeline(name: str, stages: int) -> None:
    case = make(name)
    captured = capture(case.model, case.args, **case.keywords)
    intervals = Intervals(captured)
    of_stages = intervals.of_stages(stages)
    whole = [chain for chain in chains(of_stages) if chain[-1].last == captured.num_calls]
    assert whole or name in ("skips", "masked"), "no cut at all"
    for stage, several in enumerate(of_stages):
        assert {chain[stage] for chain in whole} == set(several)
    assert len(intervals.cuts(stages)) <= stages * CUTS_PER_STAGE + 1


@pytest.mark.parametrize("name", ["llama", "gpt_tied", "transformer"])
def test_alike_intervals_have_the_same_frontier(name: str) -> None:
    case = make(name, torch.float32)
    captured = capture(case.model, case.args, **case.keywords)
    task = replace(PlanningTask(captured, load_cluster("cpu"), "adamw"), recompute=True)
    graph = MicroBatchGraph(task, 4, micro_batched(captured, 2))
    calls = captured.num_calls
    alike: defaultdict[object, list[Interval]] = defaultdict(list)
    for first in range(calls):
        for length in (5, 8, 13):
            if first + length <= calls:
                interval = graph.intervals._interval(first, first + length)
                alike[interval.alike].append(interval)
    several = [group for group in alike.values() if len(group) > 1]
    assert several
    for group in several[:6]:
        one, *others = (frontier(graph, interval) for interval in group[:3])
        assert all(other == one for other in others), group
