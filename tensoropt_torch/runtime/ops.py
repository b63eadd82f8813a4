"""Reshards, and what this process has run of collectives, from ``libtensoropt_ops``.

Its operators are differentiable, have meta kernels, and are called by every rank of the
process groups that they name. ``csrc/runtime`` documents each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tensoropt_torch.operators import OPS

MEAN = 1  # reductions, as ATen numbers them
SUM = 2


@dataclass(frozen=True)
class CollectiveCounts:
    """Collectives and local steps that this process has run, and programs."""

    all_gather: int
    reduce_scatter: int
    all_reduce: int
    all_to_all: int
    slice: int
    mask: int
    programs: int

    @property
    def collectives(self) -> int:
        """All collectives."""
        return self.all_gather + self.reduce_scatter + self.all_reduce + self.all_to_all


def collective_counts() -> CollectiveCounts:
    """What was run since the start or the last reset; empty programs do not count."""
    return CollectiveCounts(*OPS.collective_counts())


def reset_collective_counts() -> None:
    """Sets all counts of this process to 0."""
    OPS.reset_collective_counts()


@contextmanager
def network_timing() -> Iterator[Callable[[], float]]:
    """Inside, the time that this process spends in reshards, with their local
    copies, and in the collectives that operators run by themselves, is added up;
    the function that is yielded gives the seconds so far.

    Not to be nested. On GPUs each of them is waited for, which makes steps slower.
    """
    OPS.time_network(True)
    try:
        yield OPS.network_time
    finally:
        OPS.time_network(False)


def reshard(
    x: torch.Tensor,
    forward: Sequence[int],
    forward_groups: Sequence[str],
    backward: Sequence[int] = (),
    backward_groups: Sequence[str] = (),
    *,
    dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Runs an encoded program on the local part ``x``, and another on its gradient.

    Programs are those of ``_C.TensorResharder.encode``, with process group names
    in place of axis sets. An empty forward program gives a view of ``x``. The value is cast
    to ``dtype`` before its program, and the gradient to ``reduce_dtype``; by default they
    keep their dtypes.

    Raises:
        ValueError: a program is malformed or does not divide a size.

    """
    result: torch.Tensor = OPS.reshard(
        x,
        forward,
        forward_groups,
        backward,
        backward_groups,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
    )
    return result
