"""Evaluation, other shapes and outputs of models in stages, against one process."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.stage_calls import Calls

CALLS = "tests.distributed.stage_calls:"
TIMEOUT_S = 400
ALL = {"outputs": "all"}
INTERLEAVED = {"schedule": "interleaved", "chunks": 2}

ON_TWO = [
    Calls("tells", {"stages": 2, "micro_batches": 4}),
    Calls("tells", {"stages": 2, "micro_batches": 2}, keywords=ALL),
    Calls("mlp", {"stages": 2, "micro_batches": 2}),
    Calls("masked", {"stages": 2, "micro_batches": 2, **INTERLEAVED}),
    Calls("normalised", {"stages": ["layers.3"]}),
    Calls("transformer", {"stages": 2, "micro_batches": 4}),
]
ON_FOUR = [
    Calls("tells", {"stages": 2, "micro_batches": 2}, keywords=ALL),
    Calls("tells", {"stages": 2, "micro_batches": 4, "schedule": "gpipe"}, other_rows=5),
    Calls("tells", {"stages": 4, "micro_batches": 2}),
    Calls("gpt_tied", {"stages": 2, "micro_batches": 4}, other_rows=3),
    Calls("normalised", {"stages": ["layers.3"]}),
    Calls("skips", {"stages": 4, "micro_batches": 2}),
]


@pytest.mark.parametrize(("world", "calls"), [(2, ON_TWO), (4, ON_FOUR)], ids=["2", "4"])
def test_calls_of_all_kinds_give_what_one_process_gives(world: int, calls: list[Calls]) -> None:
    found = run_ranks(world, f"{CALLS}compare_calls", calls, TIMEOUT_S)
    assert found[0] == [], "\n".join(found[0])
