"""Losses of which ranks have parts, as functions that PyTorch's compiler traces through. They take
what the operators of the same names take, and give the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch

from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime.functional import all_reduced
from tensoropt_torch.runtime.ops import SUM


class _CrossEntropyVocab(torch.autograd.Function):
    """Of logits [n, classes of this rank] and targets [n]; see ``cross_entropy_vocab_op.cc``."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        reduction: int,
        ignore_index: int,
        smoothing: float,
        classes: tuple[int, int],
        groups: tuple[str, str],
    ) -> torch.Tensor:
        (num_classes, offset), (vocab_group, count_group) = classes, groups
        x = logits.to(_compute_type(logits))
        most = all_reduced(x.amax(1, keepdim=True), "max", vocab_group)
        column, inside = _local_target(target, offset, x.shape[1])
        at_target = x.gather(1, column).masked_fill(~inside, 0).squeeze(1)
        parts = [(x - most).exp().sum(1), at_target]
        if smoothing > 0:
            parts.append(x.sum(1))
        sums = all_reduced(torch.stack(parts), "sum", vocab_group)
        log_sum = sums[0].log() + most.squeeze(1)
        losses = log_sum - (1 - smoothing) * sums[1]
        if smoothing > 0:
            losses = losses - sums[2] * (smoothing / num_classes)
        total = losses.masked_fill(target == ignore_index, 0).sum()
        divisor = torch.ones((), dtype=torch.float64, device=target.device)
        if reduction != SUM:
            valid = OPS.valid_divisor.default(target, None, ignore_index)
            both = torch.stack([total.to(torch.float64), valid])
            both = all_reduced(both, "sum", count_group) if count_group else both
            total, divisor = (both[0] / both[1]).to(total.dtype), both[1]
        ctx.save_for_backward(logits, target, log_sum, divisor)
        ctx.given = ignore_index, smoothing, num_classes, offset
        return total.to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        logits, target, log_sum, divisor = ctx.saved_tensors
        ignore_index, smoothing, num_classes, offset = ctx.given
        dtype = _compute_type(logits)
        column, inside = _local_target(target, offset, logits.shape[1])
        scale = ((gradient / divisor).to(dtype) * (target != ignore_index)).unsqueeze(1)
        found = (logits.to(dtype) - log_sum.unsqueeze(1)).exp()
        found = found.scatter_add(1, column, inside.to(dtype) * (smoothing - 1))
        if smoothing > 0:
            found = found - smoothing / num_classes
        return (found * scale).to(logits.dtype), *(None for _ in range(6))


def _compute_type(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in (torch.bfloat16, torch.float16) else tensor.dtype


def _local_target(
    target: torch.Tensor, offset: int, classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The column of each position, 0 where another rank has it; and whether this one does."""
    column = (target - offset).unsqueeze(1)
    inside = (column >= 0) & (column < classes)
    return column.masked_fill(~inside, 0), inside


def cross_entropy_vocab(
    logits: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    num_classes: int,
    offset: int,
    vocab_group: str,
    count_group: str,
) -> torch.Tensor:
    """As ``tensoropt::cross_entropy_vocab``."""
    rows = logits if logits.dim() == 2 else logits.movedim(1, -1).flatten(0, -2)
    own = rows, target.flatten(), reduction, ignore_index, label_smoothing
    places = (num_classes, offset), (vocab_group, count_group)
    loss: torch.Tensor = _CrossEntropyVocab.apply(*own, *places)  # type: ignore[no-untyped-call]
    return loss
