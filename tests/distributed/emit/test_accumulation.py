"""Gradients of several passes of backward are those of one process, reduced at once or
kept for later."""

from __future__ import annotations

import random

import pytest

from tests.distributed.accumulation import Found, Job
from tests.distributed.harness import run_ranks

RANKS = "tests.distributed.accumulation"
STRATEGIES = 4
CASES = [(2, "tied"), (4, "cast")]
MORE_CASES = [(2, "cast"), (2, "resnet"), (4, "tied")]


@pytest.fixture(
    scope="module",
    params=[*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_CASES)],
    ids=lambda case: "{}-{}".format(*case),
)
def found(request: pytest.FixtureRequest) -> tuple[str, list[Found]]:
    """The model, and what each rank found."""
    ranks, model = request.param
    start = random.randrange(90)
    print(f"first seed of {model} on {ranks} ranks: {start}")
    jobs = [Job(model, range(start, start + STRATEGIES))]
    return model, [result for (result,) in run_ranks(ranks, f"{RANKS}:check_all", jobs, 300)]


def test_loops_equal_one_process(found: tuple[str, list[Found]]) -> None:
    _, results = found
    for result in results:
        assert not result.wrong, "\n".join(result.wrong[:8])
        assert "before" in result.reuses


def test_kept_passes_send_no_gradients_to_parameters_and_hold_one_of_each(
    found: tuple[str, list[Found]],
) -> None:
    model, results = found
    costs = [cost for result in results for cost in result.costs]
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
