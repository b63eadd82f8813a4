import os
import sys
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.harness import RankError, run_ranks

HERE = "tests.distributed.test_harness"


def sum_of_ranks(start: int) -> tuple[int, int, int]:
    total = torch.tensor(start + dist.get_rank())
    dist.all_reduce(total)
    return dist.get_rank(), int(total), os.getpid()


def fail_on_rank_1(_: None) -> None:
    if dist.get_rank() == 1:
        raise ValueError("no luck on rank 1")
    dist.barrier()  # waits for rank 1


def hang(_: None) -> None:
    if dist.get_rank() == 0:
        time.sleep(1000)
    dist.barrier()


def die(_: None) -> None:
    if dist.get_rank() == 1:
        print("last words", flush=True)
        os._exit(7)
    dist.barrier()


def test_results_come_back_by_rank():
    results = run_ranks(3, f"{HERE}:sum_of_ranks", 10)
    assert [(rank, total) for rank, total, _ in results] == [(0, 33), (1, 33), (2, 33)]
    assert len({pid for _, _, pid in results} | {os.getpid()}) == 4


def test_a_failing_rank_shows_its_traceback():
    with pytest.raises(RankError, match=r"rank 1 failed:[\s\S]*no luck on rank 1"):
        run_ranks(2, f"{HERE}:fail_on_rank_1")


def test_a_hang_ends_in_time():
    start = time.monotonic()
    with pytest.raises(RankError, match=r"did not end in time[\s\S]*in hang"):
        run_ranks(2, f"{HERE}:hang", timeout_s=4)
    assert time.monotonic() - start < 20


def test_a_rank_that_dies_is_an_error():
    with pytest.raises(RankError, match=r"ranks \[1\] died[\s\S]*last words"):
        run_ranks(2, f"{HERE}:die", timeout_s=60)


def modules_of_package(_: None) -> int:
    return sum(name.startswith("tensoropt_torch.") for name in sys.modules)


def test_ranks_have_what_the_server_has_imported() -> None:
    """A server whose imports fail says nothing, and each rank imports all of it instead."""
    (count,) = run_ranks(1, f"{HERE}:modules_of_package")
    assert count > 400
