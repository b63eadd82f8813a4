"""Accumulation, clipping, scaled losses and schedules of learning rates in stages, against one
process."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.stage_loops import Trained

LOOPS = "tests.distributed.stage_loops:"
TIMEOUT_S = 400
INTERLEAVED = {"micro_batches": 2, "schedule": "interleaved", "chunks": 2}

ON_TWO = [
    Trained("accumulating", "gpt_tied", {"stages": 2, "micro_batches": 2}),
    Trained("never synchronised", "masked", {"stages": 2, **INTERLEAVED}),
    Trained("scaled", "skips", {"stages": 2, "micro_batches": 2}),
]
ON_FOUR = [
    Trained("accumulating", "masked", {"stages": 2, "micro_batches": 2}),
    Trained("never synchronised", "gpt_tied", {"stages": 2, "micro_batches": 2}),
    Trained("scaled", "skips", {"stages": 2, "micro_batches": 1}),
    Trained("scaled", "shares", {"stages": 4, "micro_batches": 2}),
]


@pytest.mark.parametrize(("world", "loops"), [(2, ON_TWO), (4, ON_FOUR)], ids=["2", "4"])
def test_loops_train_as_one_process(world: int, loops: list[Trained]) -> None:
    found = run_ranks(world, f"{LOOPS}compare_loops", loops, TIMEOUT_S)
    assert found[0] == [], "\n".join(found[0])
