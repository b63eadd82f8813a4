"""Micro-batches of stages as two functions: the numbers of those that run operator by operator."""

from __future__ import annotations

import pytest
import torch

from tests.distributed.harness import run_ranks
from tests.distributed.stage_loops import Trained
from tests.distributed.staged import Pipeline

HERE = "tests.distributed.recorded_stages:"

ON_MORE = [(4, "aot_eager"), (2, "inductor")]
PIPELINES = [
    Pipeline("skips", {"stages": 2, "micro_batches": 8}, "adamw", rows=8),
    Pipeline("skips", {"stages": 2, "micro_batches": 4, "schedule": "gpipe"}, "adamw"),
    Pipeline("drops", {"stages": 2, "micro_batches": 4}),
    Pipeline("gpt_tied", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1),
    Pipeline("llama", {"stages": 2, "micro_batches": 2, "schedule": "interleaved", "chunks": 2}),
]
LOOPS = [
    Trained("casting", "skips", {"stages": 2, "micro_batches": 4}, torch.float32),
    Trained("casting", "gpt_tied", {"stages": 2, "micro_batches": 2}, torch.float32),
    Trained("accumulating", "gpt_tied", {"stages": 2, "micro_batches": 4}),
    Trained("scaled", "skips", {"stages": 2, "micro_batches": 4}),
]


@pytest.mark.parametrize("world", [2, 4])
def test_recorded_micro_batches_are_those_of_operators_one_by_one(world: int) -> None:
    for found in run_ranks(world, f"{HERE}all_compared", PIPELINES, 300):
        for pipeline, (texts, programs, reasons) in zip(PIPELINES, found, strict=True):
            assert not texts, (pipeline, texts)
            assert programs == [1] * len(programs) and not any(reasons), (pipeline, reasons)


def test_so_are_those_of_casts_and_of_passes_that_keep_some_gradients() -> None:
    for found in run_ranks(4, f"{HERE}loops_compared", LOOPS, 300):
        for trained, (texts, reasons) in zip(LOOPS, found, strict=True):
            assert not texts, (trained, texts)
            assert not reasons, (trained, reasons)


@pytest.mark.parametrize(
    ("world", "backend"),
    [(2, "aot_eager"), *(pytest.param(*c, marks=pytest.mark.slow) for c in ON_MORE)],
)
def test_compiled_stages_train_as_one_process(world: int, backend: str) -> None:
    pipeline = Pipeline("skips", {"stages": 2, "micro_batches": 4}, "adamw", clip=0.1)
    for texts, compiled in run_ranks(world, f"{HERE}compiled", (pipeline, backend), 300):
        assert not texts, texts
        assert all(count > 2 for count in compiled)


def test_what_was_changed_before_backward_is_an_error() -> None:
    for words in run_ranks(2, f"{HERE}written_between"):
        assert "modified by an inplace operation" in words
