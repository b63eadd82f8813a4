"""Random pipelines on several processes, against one (``random_pipelines.py``)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.random_pipelines import Outcome

PIPELINES = "tests.distributed.random_pipelines:"
TIMEOUT_S = 580
FEW = 8
COMPARED = 150  # on each number of processes
AT_ONCE = 25


def outcomes(seeds: Sequence[int], world: int) -> list[Outcome]:
    """Of the pipelines of these seeds; those that are refused say so."""
    known = run_ranks(1, f"{PIPELINES}alone", (seeds, world), TIMEOUT_S)[0]
    found: list[Outcome] = run_ranks(world, f"{PIPELINES}compare_drawn", (seeds, known), TIMEOUT_S)[
        0
    ]
    return found


def check(found: Sequence[Outcome]) -> None:
    """None differs, and most can be."""
    wrong = [str(outcome) for outcome in found if outcome.errors]
    assert not wrong, "\n".join(wrong)
    refused = [str(outcome) for outcome in found if outcome.refused]
    assert len(refused) <= 0.75 * len(found), "\n".join(refused)


@pytest.mark.parametrize("world", [2, 4])
def test_random_pipelines(world: int) -> None:
    check(outcomes(random.Random(world).sample(range(2**32), FEW), world))


def test_rows_that_fewer_devices_share_than_a_stage_has() -> None:
    """Two of each micro-batch, on stages of four devices."""
    found = outcomes([74, 108, 117], 8)
    assert [outcome.shares for outcome in found] == [2, 2, 2]
    check(found)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_many_random_pipelines(world: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen, found = random.Random(seed), list[Outcome]()
    while sum(not outcome.refused for outcome in found) < COMPARED:
        found += outcomes(chosen.sample(range(2**32), AT_ONCE), world)
        check(found)
