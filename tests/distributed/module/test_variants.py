"""One module trains, is evaluated on other batches and trains on, as one process does."""

from __future__ import annotations

import pytest

from tests.distributed.harness import run_ranks
from tests.distributed.variants import Job

CHECK = "tests.distributed.variants:check"
MODELS = (
    "dropped",
    "wide_resnet",
    "unet_transposed",
    "lstm",
    "nanogpt",
    "moe_scatter",
    "gpt2",
    "llama",
    "bert",
    "t5",
)


def assert_equal_to_one_process(world_size: int, job: Job) -> None:
    for count, wrong in run_ranks(world_size, CHECK, job, 500):
        assert count == job.points + job.randoms
        assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("model", "world_size"), [("dropped", 2), ("gpt2", 4)])
def test_training_and_evaluation_are_those_of_one_process(model: str, world_size: int) -> None:
    assert_equal_to_one_process(world_size, Job(model, points=2, randoms=1))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_six_strategies_are_those_of_one_process(model: str, world_size: int) -> None:
    assert_equal_to_one_process(world_size, Job(model))
