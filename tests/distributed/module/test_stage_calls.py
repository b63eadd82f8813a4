"""Evaluation, other shapes and outputs of models in stages, against one process."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.stage_calls import Calls

CALLS = "tests.distributed.stage_calls:"
TIMEOUT_S = 400
ALL = {"outputs": "all"}
SHARED = {"inputs": "sharded"}
INTERLEAVED = {"schedule": "interleaved", "chunks": 2}

ON_TWO = [
    Calls("tells", {"stages": 2, "micro_batches": 4}),
    Calls("tells", {"stages": 2, "micro_batches": 2}, keywords=ALL),
    Calls("mlp", {"stages": 2, "micro_batches": 2}),
    Calls("masked", {"stages": 2, "micro_batches": 2, **INTERLEAVED}),
    Calls("normalised", {"stages": ["layers.3"]}),
    Calls("transformer", {"stages": 2, "micro_batches": 4}),
    Calls("tells", {"stages": 2, "micro_batches": 4, **SHARED}, other_rows=5, keywords=ALL),
]
MORE_ON_TWO = [Calls("mlp", {"stages": 2, "micro_batches": 2, **SHARED}, other_rows=1)]
ON_FOUR = [
    Calls("tells", {"stages": 2, "micro_batches": 2}, keywords=ALL),
    Calls("tells", {"stages": 2, "micro_batches": 4, "schedule": "gpipe"}, other_rows=5),
    Calls("tells", {"stages": 4, "micro_batches": 2}),
    Calls("gpt_tied", {"stages": 2, "micro_batches": 4}, other_rows=3),
    Calls("normalised", {"stages": ["layers.3"]}),
    Calls("skips", {"stages": 4, "micro_batches": 2}),
]
MORE_ON_FOUR = [
    Calls("tells", {"stages": 2, "micro_batches": 2, **SHARED}, other_rows=5, keywords=ALL),
    Calls("mlp", {"stages": 2, "micro_batches": 2, **SHARED}, other_rows=3),
]


SETS = [
    pytest.param(2, ON_TWO, id="2"),
    pytest.param(4, ON_FOUR, id="4"),
    pytest.param(2, MORE_ON_TWO, id="more on 2", marks=pytest.mark.slow),
    pytest.param(4, MORE_ON_FOUR, id="more on 4", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("world", "calls"), SETS)
def test_calls_of_all_kinds_give_what_one_process_gives(world: int, calls: list[Calls]) -> None:
    found = run_ranks(world, f"{CALLS}compare_calls", calls, TIMEOUT_S)
    assert found[0] == [], "\n".join(found[0])
