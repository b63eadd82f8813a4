"""Jobs in which a rank leaves the others waiting, as programs of their own: what a rank is told
is the last line of its output.

    python -m tests.distributed.waiting SCENARIO    # with the environment that torchrun sets
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import tensoropt_torch
from tensoropt_torch import ParallelModule

TIMEOUT_S = 4.0
BATCHES = 3


class Regression(nn.Module):
    """(b, 8) -> (b, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


def made() -> ParallelModule:
    """With each rank its share of the batch."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 8), torch.randn(12, 4)
    return tensoropt_torch.auto_parallel(
        Regression(), (x,), loss_fn=F.mse_loss, targets=(y,), measure=False, inputs="sharded"
    )


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    rows = 12 // dist.get_world_size()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(BATCHES):
        yield (
            torch.randn(rows, 8, generator=generator),
            torch.randn(rows, 4, generator=generator),
        )


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def leaves_out_a_batch(parallel: ParallelModule) -> None:
    """The last rank, so that it has no call 3; then it writes for a while."""
    for index, batch in enumerate(batches()):
        if index == 1 and is_last():
            continue
        parallel(*batch).backward()
    if is_last():
        time.sleep(TIMEOUT_S + 2)


def stops_early(parallel: ParallelModule) -> None:
    """And ends its process."""
    for index, batch in enumerate(batches()):
        if index == 2 and is_last():
            return
        parallel(*batch).backward()


def stops_early_and_meets(parallel: ParallelModule) -> None:
    """And waits in a collective of the program."""
    for index, batch in enumerate(batches()):
        if index == 2 and is_last():
            break
        parallel(*batch).backward()
    dist.barrier()


def saves_alone(parallel: ParallelModule) -> None:
    for batch in batches():
        parallel(*batch).backward()
        if dist.get_rank() == 0:
            path = Path(tempfile.mkdtemp()) / "run.pt"
            tensoropt_torch.save({"model": parallel.state_dict()}, path)


def stays_away_after_saving(parallel: ParallelModule) -> None:
    """Which all have done; a rank then does something else for too long."""
    parallel(*next(batches())).backward()
    tensoropt_torch.save({"model": parallel.state_dict()}, Path(tempfile.mkdtemp()) / "run.pt")
    if is_last():
        time.sleep(TIMEOUT_S + 2)
    else:
        parallel(*next(batches())).backward()


def clips_alone(parallel: ParallelModule) -> None:
    for batch in batches():
        parallel(*batch).backward()
        if is_last():
            tensoropt_torch.clip_grad_norm_(parallel.parameters(), 1.0)


def has_damaged_data(parallel: ParallelModule) -> None:
    for index, batch in enumerate(batches()):
        if index == 2 and is_last():
            raise OSError("image 17 is damaged")
        parallel(*batch).backward()


def never_goes_backward(parallel: ParallelModule) -> None:
    """In the second batch."""
    for index, batch in enumerate(batches()):
        loss = parallel(*batch)
        if not (index == 1 and is_last()):
            loss.backward()


def goes_backward_twice(parallel: ParallelModule) -> None:
    """In the second batch."""
    for index, batch in enumerate(batches()):
        loss = parallel(*batch)
        twice = index == 1 and is_last()
        loss.backward(retain_graph=twice)
        if twice:
            loss.backward()


def takes_the_store_along(parallel: ParallelModule) -> None:
    """Rank 0, which has it, ends without a word."""
    for index, batch in enumerate(batches()):
        if index == 2 and dist.get_rank() == 0:
            os._exit(0)
        parallel(*batch).backward()


def is_killed(parallel: ParallelModule) -> None:
    """The last rank, as by the system where memory runs out."""
    for index, batch in enumerate(batches()):
        if index == 2 and is_last():
            os.kill(os.getpid(), signal.SIGKILL)
        parallel(*batch).backward()


def plans_alone(parallel: ParallelModule) -> None:
    for batch in batches():
        if is_last():
            made()
        parallel(*batch).backward()


SCENARIOS: dict[str, Callable[[ParallelModule], None]] = {
    function.__name__: function
    for function in (
        leaves_out_a_batch,
        stops_early,
        stops_early_and_meets,
        saves_alone,
        stays_away_after_saving,
        clips_alone,
        has_damaged_data,
        takes_the_store_along,
        is_killed,
        never_goes_backward,
        goes_backward_twice,
        plans_alone,
    )
}


def told(name: str) -> tuple[str, float]:
    """The error of this rank, or nothing, and the seconds until then."""
    parallel = made()
    start = time.monotonic()
    text = ""
    try:
        SCENARIOS[name](parallel)
    except tensoropt_torch.TensorOptError as error:
        text = str(error)
    return text, time.monotonic() - start


def main(name: str) -> None:
    """Runs it, and prints what this rank was told."""
    torch.set_num_threads(1)
    tensoropt_torch.init("gloo", timeout_s=TIMEOUT_S)
    print("\n" + json.dumps(told(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
