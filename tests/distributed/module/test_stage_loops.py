"""Accumulation, clipping, scaled losses and schedules of learning rates in stages, against one
process."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.harness import run_ranks
from tests.distributed.stage_loops import Trained

LOOPS = "tests.distributed.stage_loops:"
TIMEOUT_S = 400
GPIPE = {"stages": 2, "micro_batches": 2, "schedule": "gpipe"}
INTERLEAVED = {"micro_batches": 2, "schedule": "interleaved", "chunks": 2}

ON_TWO = [
    Trained("accumulating", "gpt_tied", {"stages": 2, "micro_batches": 2}),
    Trained("never synchronised", "masked", {"stages": 2, **INTERLEAVED}),
    Trained("scaled", "skips", {"stages": 2, "micro_batches": 2}),
    Trained("own losses", "several", GPIPE),
    Trained("few", "several", GPIPE),
    Trained("checkpointed", "skips", {"stages": 2, "micro_batches": 2}),
    Trained("freezing", "skips", {"stages": 2, "micro_batches": 4}),
    Trained("clipped values", "skips", {"stages": ["up.0"], "micro_batches": 2}),
    Trained("half", "skips", GPIPE, torch.float32, 5e-2),
]
MORE_ON_TWO = [
    Trained("never synchronised", "gpt_tied", GPIPE),
    Trained("checkpointed", "skips", GPIPE),
    Trained("freezing", "skips", GPIPE),
]
ON_FOUR = [
    Trained("casting", "skips", {"stages": 2, "micro_batches": 4}, torch.float32, 5e-2),
    Trained("casting", "gpt_tied", {"stages": 2, "micro_batches": 2}, torch.float32, 5e-2),
    Trained("accumulating", "masked", {"stages": 2, "micro_batches": 2}),
    Trained("never synchronised", "gpt_tied", {"stages": 2, "micro_batches": 2}),
    Trained("scaled", "skips", {"stages": 2, "micro_batches": 1}),
    Trained("scaled", "shares", {"stages": 4, "micro_batches": 2}),
    Trained("own losses", "several", GPIPE),
]
MORE_ON_FOUR = [
    Trained("freezing", "skips", {"stages": 2, "micro_batches": 4}),
    Trained("few", "several", {**GPIPE, "micro_batches": 4}),
    Trained("checkpointed", "skips", {"stages": 2, "micro_batches": 4}),
    Trained("clipped values", "skips", {"stages": ["up.0"], "micro_batches": 4}),
    Trained("never synchronised", "masked", {"stages": 2, **INTERLEAVED}),
    Trained("accumulating", "gpt_tied", {"stages": 2, **INTERLEAVED}),
    Trained("casting", "gpt_tied", {"stages": 2, **INTERLEAVED}, torch.float32, 5e-2),
    Trained("accumulating", "gpt_tied", GPIPE),
    Trained("freezing", "skips", {"stages": 4, "micro_batches": 2}),
    Trained("own losses", "several", {**GPIPE, "micro_batches": 1}),
    Trained("own losses", "several", {**GPIPE, "stages": 4}),
    Trained("half", "skips", {**GPIPE, "stages": 4}, torch.float32, 5e-2),
]
SETS = [
    pytest.param(2, ON_TWO, id="2"),
    pytest.param(4, ON_FOUR, id="4"),
    pytest.param(2, MORE_ON_TWO, id="more on 2", marks=pytest.mark.slow),
    pytest.param(4, MORE_ON_FOUR, id="more on 4", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("world", "loops"), SETS)
def test_loops_train_as_one_process(world: int, loops: list[Trained]) -> None:
    found = run_ranks(world, f"{LOOPS}compare_loops", loops, TIMEOUT_S)
    assert found[0] == [], "\n".join(found[0])
