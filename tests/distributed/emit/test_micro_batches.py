"""Steps of several micro-batches: what a user of the module sees, and what runs in each."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks

RANKS = "tests.distributed.micro_batches"


@pytest.mark.parametrize(
    ("world_size", "inputs"), [(1, "replicated"), (2, "sharded"), (2, "replicated")]
)
def test_the_module_is_used_as_with_the_whole_batch(world_size: int, inputs: str) -> None:
    for wrong in run_ranks(world_size, f"{RANKS}:use", inputs):
        assert not wrong, "\n".join(wrong)


def test_reshards_of_parameters_run_once_or_in_each() -> None:
    for rank in run_ranks(2, f"{RANKS}:programs"):
        for expected, ran, _, _ in rank:
            assert ran == expected
        assert any(held for *_, held, _ in rank)
        assert any(summed for *_, summed in rank)


def test_totals_are_made_where_the_job_runs() -> None:
    for errors in run_ranks(1, f"{RANKS}:captured_on_meta"):
        assert max(errors) < 1e-6
