"""What a step of several micro-batches does with gradients that wait, numbers that change and
tensors that the program writes; and other orders of its work."""

from __future__ import annotations

import random

import pytest

from tests.distributed.accumulation import Job
from tests.distributed.harness import run_ranks

RANKS = "tests.distributed.kept_micro_batches"


def check(world: int, what: str, *given: object) -> None:
    for wrong in run_ranks(world, f"{RANKS}:{what}", *given):
        assert not wrong, "\n".join(wrong[:6])


@pytest.mark.parametrize(
    ("world", "model"),
    [(2, "tied"), *(pytest.param(*c, marks=pytest.mark.slow) for c in [(4, "cast"), (2, "lora")])],
)
def test_training_loops_equal_one_process(world: int, model: str) -> None:
    start = random.randrange(90)
    print(f"first seed of {model} on {world} ranks: {start}")
    check(world, "loops", Job(model, range(start, start + 4)), 300)


@pytest.mark.parametrize(("world", "inputs"), [(2, "sharded"), (2, "replicated")])
def test_every_pass_of_random_sequences_equals_one_process(world: int, inputs: str) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    check(world, "random_passes", (inputs, seed), 300)


def test_kept_passes_send_no_gradients() -> None:
    for kept, forward, reduced in run_ranks(2, f"{RANKS}:counts"):
        assert kept == forward < reduced


def test_micro_batches_may_run_in_other_orders() -> None:
    check(2, "other_orders", "sharded")


def test_numbers_that_change_are_those_of_the_call() -> None:
    check(2, "numbers")


def test_what_is_written_between_is_as_in_one_process() -> None:
    check(2, "writes")
