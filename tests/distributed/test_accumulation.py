"""Gradients of several passes of backward are those of one process, reduced at once or
kept for later."""

from __future__ import annotations

import random

import pytest

from tests.distributed.accumulation import Found, Job
from tests.distributed.harness import run_ranks

RANKS = "tests.distributed.accumulation"
STRATEGIES = 4
MODELS = {2: ("tied", "cast", "resnet"), 4: ("tied", "cast")}
ALL = [(ranks, model) for ranks, models in MODELS.items() for model in models]


@pytest.fixture(scope="module")
def found() -> dict[tuple[int, str, int], Found]:
    """By number of ranks, model and rank."""
    by_rank = {}
    for ranks, models in MODELS.items():
        start = random.randrange(90)
        print(f"first seed on {ranks} ranks: {start}")
        jobs = [Job(model, range(start, start + STRATEGIES)) for model in models]
        for rank, results in enumerate(run_ranks(ranks, f"{RANKS}:check_all", jobs, 300)):
            by_rank |= {(ranks, m, rank): r for m, r in zip(models, results, strict=True)}
    return by_rank


@pytest.mark.parametrize(("ranks", "model"), ALL)
def test_loops_equal_one_process(
    ranks: int, model: str, found: dict[tuple[int, str, int], Found]
) -> None:
    for rank in range(ranks):
        result = found[ranks, model, rank]
        assert not result.wrong, "\n".join(result.wrong[:8])
        assert "before" in result.reuses


@pytest.mark.parametrize(("ranks", "model"), ALL)
def test_kept_passes_send_no_gradients_to_parameters_and_hold_one_of_each(
    ranks: int, model: str, found: dict[tuple[int, str, int], Found]
) -> None:
    costs = [cost for rank in range(ranks) for cost in found[ranks, model, rank].costs]
    assert any(c.put_off and not c.bucketed for c in costs)
    for c in costs:
        assert c.kept == c.kept_again <= c.reduced, c
        assert c.kept == c.reduced - c.put_off or (c.bucketed and c.kept > c.reduced - c.put_off), c
        assert len(set(c.sizes)) == 1, c
        if model != "cast":  # whose sums are sent in another dtype
            assert c.reduced_last == c.reduced, c


def test_data_parallel_passes_that_are_kept_send_nothing_in_backward() -> None:
    for counts in run_ranks(2, f"{RANKS}:counts_of_data_parallel"):
        for kept, forward, reduced in counts:
            assert kept == forward < reduced


def test_several_graphs_share_what_is_kept() -> None:
    assert run_ranks(2, f"{RANKS}:alternate") == [[], []]
