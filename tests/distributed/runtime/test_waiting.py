"""A rank that leaves others waiting: each of these ends soon after the time limit, with an error
that says in which call it waits, where the others are, and what is likely."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tensoropt_torch.runtime.lost_ranks import likely
from tensoropt_torch.runtime.whereabouts import Note, Place
from tests.distributed.harness import free_port, run_ranks
from tests.distributed.waiting import TIMEOUT_S, told

HERE = "tests.distributed.runtime.test_waiting"
ROOT = Path(__file__).parents[3]
FEW_S = 6.0  # the notes of others, and a busy machine

Told = tuple[str, float]


def run(name: str) -> Told:
    """On a rank."""
    world = dist.group.WORLD
    assert world is not None
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT_S), world)
    return told(name)


def check(found: Told, *words: str) -> None:
    text, seconds = found
    for word in words:
        assert word in text, (word, text)
    assert seconds < TIMEOUT_S + FEW_S


def forward(call: int) -> str:
    return f"the forward of call {call} of Regression"


def backward(call: int) -> str:
    return f"the backward of call {call} of Regression"


def test_a_batch_is_left_out() -> None:
    first, second, last = run_ranks(3, f"{HERE}:run", "leaves_out_a_batch")
    where = f"rank 2 began {backward(2)}", "rank 2 left out a batch"
    check(first, f"rank 0 has waited for other ranks in {forward(3)}", *where)
    check(second, f"rank 1 has waited for other ranks in {forward(3)}", *where)
    assert last[0] == ""


def test_a_rank_waits_in_a_collective_of_the_program() -> None:
    first, second = run_ranks(2, f"{HERE}:run_to_a_barrier")
    check(first, f"has waited for other ranks in {forward(3)}", f"rank 1 began {backward(2)}")
    assert "TensorOptError" not in second[0]


def run_to_a_barrier(_: None) -> Told:
    try:
        return run("stops_early_and_meets")
    except RuntimeError as error:  # of the barrier
        return repr(error), 0.0


def test_a_rank_saves_alone() -> None:
    first, second = run_ranks(2, f"{HERE}:run", "saves_alone")
    check(first, "rank 0 has waited for other ranks in save", f"rank 1 waits in {forward(2)}")
    check(second, f"rank 1 has waited for other ranks in {forward(2)}", "rank 0 waits in save")
    for text, _ in (first, second):
        assert "save is called on rank 0 only, as behind `if rank == 0:`" in text


def test_a_rank_does_something_else_for_too_long() -> None:
    first, _ = run_ranks(2, f"{HERE}:run", "stays_away_after_saving")
    check(first, f"in {forward(2)}", "rank 1 is past save", "or is still busy")


def test_a_rank_clips_alone() -> None:
    found = run_ranks(3, f"{HERE}:run", "clips_alone")
    for rank_told in found:
        check(rank_told, "clip_grad_norm_ is called on rank 2 only", forward(2))


def test_a_rank_plans_alone() -> None:
    first, second = run_ranks(2, f"{HERE}:run", "plans_alone")
    check(first, f"in {forward(1)}", "rank 1 waits in auto_parallel")
    check(second, "in auto_parallel", f"rank 0 waits in {forward(1)}", "on rank 1 only")


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("never_goes_backward", (backward(2), forward(3))),
        ("goes_backward_twice", (forward(3), backward(2))),
    ],
)
def test_backward_is_not_called_as_often(name: str, places: tuple[str, str]) -> None:
    found = run_ranks(2, f"{HERE}:run", name)
    for rank, rank_told in enumerate(found):
        check(
            rank_told,
            f"rank {rank} has waited for other ranks in {places[rank]}",
            f"rank {1 - rank} waits in {places[1 - rank]}",
            "backward is not called as often on all ranks",
        )


def run_programs(size: int, name: str) -> list[str]:
    """What the ranks write, each a process that ends as programs do."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.distributed.waiting", name]
    ranks = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        return [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def told_by(output: str) -> Told:
    text, seconds = json.loads(output.strip().splitlines()[-1])
    return text, seconds


def test_a_rank_ends_early() -> None:
    first, second = run_programs(2, "stops_early")
    where = f"in {forward(3)}", f"rank 1 has ended, after {backward(2)}"
    check(told_by(first), *where, "rank 1 had fewer batches, or left the loop early")
    assert told_by(second)[0] == ""


def test_a_rank_fails_over_its_data() -> None:
    first, second, third = run_programs(3, "has_damaged_data")
    error = "OSError: image 17 is damaged"
    for output in (first, second):
        where = f"in {forward(3)}", f"rank 2 has ended with {error}, after {backward(2)}"
        check(told_by(output), *where, "the error of rank 2")
    assert third.strip().endswith(error)


def test_a_rank_is_killed() -> None:
    first, _ = run_programs(2, "is_killed")
    text, _ = told_by(first)
    check(told_by(first), f"in {forward(3)}", f"rank 1 began {backward(2)}")
    assert "Likely: the process of rank 1 was killed, as where memory runs out" in text
    assert "by peer" in text and "typically" not in text  # without Gloo's advice
    assert "\n" not in text


def test_the_rank_with_the_store_is_gone() -> None:
    _, second = run_programs(2, "takes_the_store_along")
    check(told_by(second), f"in {forward(3)}", "the store of the job does not answer")


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({0: ("forward", "waits"), 1: ("forward", "told")}, "init(timeout_s=...)"),
        ({0: ("save", "waits"), 1: ("forward", "began")}, "save is called on rank 0 only"),
        ({0: ("forward", "waits"), 1: ("backward", "waits")}, "backward is not called as often"),
        ({0: ("forward", "waits"), 1: ("backward", "ended")}, "rank 1 had fewer batches"),
        ({0: ("save", "past"), 1: ("forward", "waits")}, "rank 0 left out a batch"),
        ({0: ("save", "waits"), 1: ("save", "told")}, "init(timeout_s=...)"),
        ({0: ("forward", "waits")}, "rank 1 left out a batch"),
        ({0: ("forward", "waits"), 1: ("forward", "began")}, "rank 1 left out a batch"),
    ],
)
def test_what_is_likely(notes: dict[int, tuple[str, str]], words: str) -> None:
    found = {
        rank: Note(Place(f"the {kind} of call 3 of M", kind, 3), state)  # type: ignore[arg-type]
        for rank, (kind, state) in notes.items()
    }
    assert re.search(re.escape(words), likely(found, 2))


def test_a_closed_connection_says_who_may_be_gone() -> None:
    notes = {
        rank: Note(Place("the forward of call 3 of M", "forward", 3), "waits") for rank in (0, 1)
    }
    closed = "Connection closed by peer"
    assert "rank 2 was killed, left out a batch" in likely(notes, 3, closed)
    assert "the process of rank 1 was killed" in likely({0: notes[0]}, 2, closed)


def test_nothing_is_noted_in_a_job_of_one_process() -> None:
    assert run_ranks(1, f"{HERE}:has_no_notes") == [True]


def has_no_notes(_: None) -> bool:
    from tensoropt_torch.runtime.whereabouts import board

    return board() is None
