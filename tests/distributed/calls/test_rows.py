"""Rows of a batch are where inputs have them, and gradients count as losses say."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.rows import MODELS

HERE = "tests.distributed.rows"


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_rows_are_shared_out_where_they_are(name: str, world: int) -> None:
    assert run_ranks(world, f"{HERE}:check", name, 400) == [[]] * world


@pytest.mark.parametrize("world", [2, 4])
def test_the_mean_of_losses_is_trained_on_once_for_all_calls(world: int) -> None:
    assert run_ranks(world, f"{HERE}:check_rollout", None, 300) == [[]] * world
