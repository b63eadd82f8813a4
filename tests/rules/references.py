"""What our own operators promise (csrc/runtime), in plain PyTorch for all ranks
at once.

A reference gets every rank's operands, the literals and process groups of every
rank's call, and returns every rank's result. A group is the list of its ranks.
The derivative of all results by a rank's operands is what the operator's backward
has to give on that rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

MEAN = 1


@dataclass(frozen=True)
class RankCall:
    """One rank's call of an operator of ours."""

    operands: list[Any]  # tensors, or None for an absent one
    extra: list[Any]
    groups: list[list[int]]


Reference = Callable[[Sequence[RankCall]], list[torch.Tensor]]


def embedding_shard(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    return [_embedding_shard(call.operands[0], call.operands[1], *call.extra) for call in calls]


def _embedding_shard(
    weight: torch.Tensor, index: torch.Tensor, offset: int, padding_idx: int = -1
) -> torch.Tensor:
    """Rows outside of this shard give zeros."""
    inside = (index >= offset) & (index < offset + len(weight))
    rows = weight[(index - offset).where(inside, 0)]
    rows = torch.where((index == padding_idx)[..., None], rows.detach(), rows)
    return torch.where(inside[..., None], rows, 0)


def _count(calls: Sequence[RankCall], group: list[int], ignore_index: int) -> int:
    """The targets that count, on all ranks of the group."""
    return sum(int((calls[r].operands[1] != ignore_index).sum()) for r in group)


def cross_entropy_sharded(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """The local sum over the count of all ranks."""
    results = []
    for call in calls:
        logits, target = call.operands
        reduction, ignore_index, smoothing = call.extra
        loss = F.cross_entropy(
            logits,
            target,
            ignore_index=ignore_index,
            reduction="sum",
            label_smoothing=smoothing,
        )
        if reduction == MEAN:
            loss = loss / _count(calls, call.groups[0], ignore_index)
        results.append(loss)
    return results


def nll_loss_sharded(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """The local sum over the count of all ranks."""
    results = []
    for call in calls:
        log_probs, target = call.operands
        (ignore_index,) = call.extra
        loss = F.nll_loss(log_probs, target, ignore_index=ignore_index, reduction="sum")
        results.append(loss / _count(calls, call.groups[0], ignore_index))
    return results


def cross_entropy_vocab(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """The loss of the logits of all ranks of the vocabulary group, joined in the
    order of their offsets."""
    results = []
    for rank, call in enumerate(calls):
        reduction, ignore_index, _ = call.extra
        vocabulary, positions = call.groups
        by_offset = sorted(vocabulary, key=lambda r: calls[r].extra[2])
        width = call.operands[0].shape[1]
        offsets = [calls[r].extra[2] for r in by_offset]
        assert offsets == [i * width for i in range(len(offsets))], offsets
        logits = torch.cat(
            [
                calls[r].operands[0] if r == rank else calls[r].operands[0].detach()
                for r in by_offset
            ],
            1,
        )
        loss = F.cross_entropy(logits, call.operands[1], ignore_index=ignore_index, reduction="sum")
        if reduction == MEAN:
            loss = loss / _count(calls, positions or [rank], ignore_index)
        results.append(loss)
    return results


def batch_norm_sharded(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """Statistics of the inputs of all ranks of the batch group. Running ones are
    of the blocks of all ranks of the channel group."""
    moments = []
    for rank, call in enumerate(calls):
        whole = torch.cat([calls[r].operands[0] for r in call.groups[0] or [rank]])
        dims = [d for d in range(whole.dim()) if d != 1]
        moments.append((whole.mean(dims), whole.var(dims, correction=0), whole.var(dims)))
    results = []
    for rank, call in enumerate(calls):
        x, weight, bias, running_mean, running_var = call.operands
        momentum, eps = call.extra
        shape = [-1] + [1] * (x.dim() - 2)
        mean, variance = (moment.reshape(shape) for moment in moments[rank][:2])
        result = (x - mean) / (variance + eps).sqrt()
        if weight is not None:
            result = result * weight.reshape(shape)
        results.append(result if bias is None else result + bias.reshape(shape))
        if running_mean is not None:
            blocks = call.groups[1] or [rank]
            for running, index in ((running_mean, 0), (running_var, 2)):
                new = torch.cat([moments[r][index] for r in blocks]).detach()
                running.copy_((1 - momentum) * running + momentum * new)
    return results


REFERENCES: dict[str, Reference] = {
    "tensoropt.embedding_shard.default": embedding_shard,
    "tensoropt.cross_entropy_sharded.default": cross_entropy_sharded,
    "tensoropt.nll_loss_sharded.default": nll_loss_sharded,
    "tensoropt.cross_entropy_vocab.default": cross_entropy_vocab,
    "tensoropt.batch_norm_sharded.default": batch_norm_sharded,
}
