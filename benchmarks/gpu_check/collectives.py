"""Collectives that plans use, over Gloo, with tensors on one device that processes share.

Each is compared with what its definition gives, in several dtypes, and tried by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.gpu_check.worker import arguments, join_over_gloo, report, said_by

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
COUNT = 6  # of numbers in each rank's part

Made = tuple[torch.Tensor, torch.Tensor]  # what came out, and what should


class Operands:
    """Whole numbers that differ by rank and place, exact in every dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        everyone = torch.arange(self.ranks * self.ranks * COUNT, device=device) % 32
        self.all = everyone.view(self.ranks, self.ranks * COUNT).to(dtype)
        self.own = self.all[self.rank].clone()

    def parts(self) -> torch.Tensor:
        """(ranks, ranks, count): what each has for each."""
        return self.all.view(self.ranks, self.ranks, COUNT)


def all_gather(o: Operands) -> Made:
    out = o.own.new_empty(o.all.numel())
    dist.all_gather_into_tensor(out, o.own)
    return out, o.all.flatten()


def all_gather_list(o: Operands) -> Made:
    out = [torch.empty_like(o.own) for _ in range(o.ranks)]
    dist.all_gather(out, o.own)
    return torch.stack(out), o.all


def reduce_scatter(o: Operands) -> Made:
    out = o.own.new_empty(COUNT)
    dist.reduce_scatter_tensor(out, o.own)
    return out, o.parts().sum(0)[o.rank].to(out.dtype)


def all_reduce(o: Operands) -> Made:
    dist.all_reduce(o.own)
    return o.own, o.all.sum(0).to(o.own.dtype)


def all_reduce_max(o: Operands) -> Made:
    dist.all_reduce(o.own, dist.ReduceOp.MAX)
    return o.own, o.all.amax(0)


def all_to_all(o: Operands) -> Made:
    out = torch.empty_like(o.own)
    dist.all_to_all_single(out, o.own)
    return out, o.parts()[:, o.rank].flatten()


def broadcast(o: Operands) -> Made:
    dist.broadcast(o.own, 0)
    return o.own, o.all[0]


COLLECTIVES: tuple[Callable[[Operands], Made], ...] = (
    all_gather,
    all_gather_list,
    reduce_scatter,
    all_reduce,
    all_reduce_max,
    all_to_all,
    broadcast,
)


def tried(collective: Callable[[Operands], Made], device: torch.device, dtype: torch.dtype) -> str:
    """``right``, ``wrong`` or the error."""
    try:
        got, expected = collective(Operands(device, dtype))
    except RuntimeError as error:
        return said_by(error)
    return "right" if torch.equal(got, expected) else f"wrong: {got} instead of {expected}"


def main() -> None:
    """Passes if all of them are right on the first rank."""
    device = join_over_gloo(arguments().device)
    found = {
        collective.__name__: {str(dtype): tried(collective, device, dtype) for dtype in DTYPES}
        for collective in COLLECTIVES
    }
    passed = all(result == "right" for row in found.values() for result in row.values())
    report(passed, processes=dist.get_world_size(), collectives=found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
