"""Operators for reshards of parameters that run together, or while the rank computes
(``csrc/runtime/parameter_queue.h``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensoropt_torch.operators import OPS

MOST_UNDER_WAY = 4


class ParameterQueue(int):
    """The number by which operators name a queue, and the queue. Autograd graphs that were made
    with it keep the queue as well."""

    queue: torch.ScriptObject


def parameter_queue(
    bucket_bytes: int = 0, shard_bytes: int = 0, most_under_way: int = MOST_UNDER_WAY
) -> ParameterQueue:
    """Where parameters and their gradients are while they are resharded, of one forward
    and its backward.

    Args:
        bucket_bytes: sums over the same ranks are made together, so many bytes at once.
        shard_bytes: the same, of sums of which each rank gets a part.
        most_under_way: how many of them there are at most; the next one waits for the oldest.

    Raises:
        ValueError: ``most_under_way`` is below 1, or a number of bytes below 0.

    """
    queue = torch.classes.tensoropt.ParameterQueue(most_under_way, bucket_bytes, shard_bytes)
    number = ParameterQueue(queue.number())
    number.queue = queue
    return number


def begin_value(
    x: torch.Tensor,
    forward: Sequence[int],
    forward_groups: Sequence[str],
    queue: int,
    slot: int,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Begins the forward program of ``reshard_parameter``, with the same arguments."""
    OPS.begin_value(x, forward, forward_groups, queue, slot, dtype=dtype)


def begin_gathers(
    xs: Sequence[torch.Tensor],
    dims: Sequence[int],
    group: str,
    queue: int,
    slots: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Begins the forward programs of several ``reshard_parameter``, each of which gathers one
    dim over the same ranks, as one collective. What is not taken at once has memory of its own
    from the first that is taken on.

    Raises:
        ValueError: there is none, or one that is empty or of complex numbers, or the numbers of
            tensors, dims and slots differ.

    """
    OPS.begin_gathers(xs, dims, group, queue, slots, dtype=dtype)


def take_value(x: torch.Tensor, queue: int, slot: int) -> torch.Tensor:
    """Waits for what ``begin_value`` or ``begin_gathers`` began in the slot, of ``x``.

    Raises:
        ValueError: nothing was begun since it was taken.

    """
    result: torch.Tensor = OPS.take_value(x, queue, slot)
    return result
