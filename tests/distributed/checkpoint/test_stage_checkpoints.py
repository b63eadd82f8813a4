"""Runs that go on under plans with another number of stages, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.stage_checkpoints import Pair, Run, drawn_pair

CHECKPOINTS = "tests.distributed.stage_checkpoints:"
TIMEOUT_S = 500


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_runs_go_on_under_other_numbers_of_stages(count: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    _check([drawn_pair(chosen, number) for number in range(count)], tmp_path)


def test_stages_of_several_ranks_write_one_file(tmp_path: Path) -> None:
    """With states of the optimizer that rank 0 alone has."""
    before, after = Run("masked", 4, 2, 1, seed=0), Run("masked", 1, 1, 1, seed=0)
    _check([Pair(before, after, "one file", "run")], tmp_path)


def _check(pairs: Sequence[Pair], tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {}
    for world in (1, 2, 4):
        own = [pair for pair in pairs if pair.before.world == world]
        if own:
            found = run_ranks(world, f"{CHECKPOINTS}keep", (own, str(tmp_path)), TIMEOUT_S)
            losses |= found[0]
    for world in (1, 2, 4):
        own = [pair for pair in pairs if pair.after.world == world]
        if not own:
            continue
        again, texts = run_ranks(world, f"{CHECKPOINTS}go_on", (own, str(tmp_path)), TIMEOUT_S)[0]
        assert texts == [], "\n".join(texts)
        for pair in own:
            assert again[pair.name] == pytest.approx(losses[pair.name], rel=1e-9), str(pair)
