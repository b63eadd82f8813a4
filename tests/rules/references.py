"""What our own operators promise (csrc/runtime), in plain PyTorch for all ranks
at once.

A reference gets every rank's operands, the literals and process groups of every
rank's call, and returns every rank's result. A group is the list of its ranks.
The derivative of all ranks' results by a rank's operands is what the operator's
backward has to give that rank; where it gives less, operands of other ranks are
detached.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from tensoropt_torch.rules.call import RankCall, Reference

MEAN = 1


def embedding_shard(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    return [_embedding_shard(call.operands[0], call.operands[1], *call.extra) for call in calls]


def _embedding_shard(
    weight: torch.Tensor,
    index: torch.Tensor,
    offset: int,
    padding_idx: int = -1,
    wraps_at: int = 0,
) -> torch.Tensor:
    """Rows outside of this shard give zeros."""
    index = torch.where(index < 0, index + wraps_at, index)
    inside = (index >= offset) & (index < offset + len(weight))
    rows = weight[(index - offset).where(inside, 0)]
    own_dims = (1,) * (weight.dim() - 1)
    padding = (index == padding_idx).reshape(*index.shape, *own_dims)
    rows = torch.where(padding, rows.detach(), rows)
    return torch.where(inside.reshape(*index.shape, *own_dims), rows, 0)


def gather_shard(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """From a tensor with zeros for the entries of other ranks."""
    results = []
    for call in calls:
        x, index = call.operands
        dim, offset = call.extra
        before, after = list(x.shape), list(x.shape)
        before[dim] = offset
        after[dim] = max(0, int(index.max()) + 1 - offset - x.shape[dim])
        padded = torch.cat([x.new_zeros(before), x, x.new_zeros(after)], dim)
        results.append(padded.gather(dim, index))
    return results


def embedding_bag_shard(calls: Sequence[RankCall]) -> list[list[torch.Tensor]]:
    return [[_embedding_bag_shard(*call.operands, *call.extra)] for call in calls]


def _embedding_bag_shard(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    factors: torch.Tensor | None,
    mode: int,
    include_last_offset: bool,
    padding_idx: int,
    row_offset: int,
    first_bag: int,
    num_bags: int,
) -> torch.Tensor:
    """One bag after the other; rows outside of this shard are left out."""
    ends = [*offsets.tolist(), len(indices)]
    results = []
    for bag in range(first_bag, first_bag + num_bags):
        positions = torch.arange(ends[bag], ends[bag + 1])
        positions = positions[indices[positions] != padding_idx]
        count = max(1, len(positions))
        rows = indices[positions] - max(0, row_offset)
        inside = (rows >= 0) & (rows < len(weight))
        vectors = weight[rows[inside]]
        if factors is not None:
            vectors = vectors * factors[positions[inside], None]
        if mode == 2 and len(vectors):
            results.append(vectors.amax(0))
        else:
            results.append(vectors.sum(0) / (count if mode == 1 else 1))
    assert not include_last_offset or len(ends) > num_bags + 1
    return torch.stack(results)


def grouped_mm_shard(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """Row by row; rows of other ranks' groups give zeros."""
    results = []
    for call in calls:
        x, weight, ends = call.operands
        (first,) = call.extra
        group = torch.bucketize(torch.arange(len(x)), ends, right=True) - first
        inside = (group >= 0) & (group < len(weight))
        matrices = weight[group.where(inside, 0)]
        results.append(torch.where(inside[:, None], (x[:, None] @ matrices)[:, 0], 0))
    return results


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def routed_experts_shard(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """Choice by choice, with the matrices of the rank that holds the expert."""
    return [_routed_experts(calls, rank) for rank in range(len(calls))]


def _routed_experts(calls: Sequence[RankCall], rank: int) -> torch.Tensor:
    x, experts, weights = calls[rank].operands[:3]
    _, activation, gated, transposed, _, firsts = calls[rank].extra
    exchange, units = calls[rank].groups
    own = len(calls[rank].operands[3])
    total = torch.zeros_like(x)
    for holder, first in zip(exchange or [rank], firsts, strict=True):
        sharers = calls[holder].groups[1] or [holder]
        matrices = {
            other: [given.mT if transposed else given for given in calls[other].operands[3:]]
            for other in sharers
        }
        columns = torch.cat([up for up, _ in matrices.values()], -1)
        part = units.index(rank) if units else 0
        halves = [half.chunk(len(sharers), -1)[part] for half in columns.chunk(1 + gated, -1)]
        _, down = matrices[holder]
        for choice in range(experts.shape[1]):
            expert = experts[:, choice] - first
            inside = (expert >= 0) & (expert < own)
            expert = expert.where(inside, 0)
            gate, *rest = (torch.einsum("td,tdf->tf", x, half[expert]) for half in halves)
            hidden = ACTIVATIONS[activation](gate)
            for factor in rest:
                hidden = hidden * factor
            result = torch.einsum("tf,tfd->td", hidden, down[expert]) * weights[:, choice, None]
            total = total + torch.where(inside[:, None], result, 0)
    return total


def balanced_causal_attention(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """Rows of a block see the keys up to their own position; dropout is that of the block."""
    results = []
    for rank, call in enumerate(calls):
        query, key, value = call.operands
        dropout_p, scale, grouped = call.extra
        part = call.groups[0].index(rank)
        if grouped:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        rows, keys = scores.shape[-2:]
        hidden = torch.arange(keys) > part * rows + torch.arange(rows)[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        if dropout_p > 0:
            generator = torch.Generator().manual_seed(part)
            kept = torch.rand(weights.shape, generator=generator) >= dropout_p
            weights = weights * kept / (1 - dropout_p)
        results.append(weights @ value)
    return results


def _count(calls: Sequence[RankCall], group: list[int], ignore_index: int) -> torch.Tensor:
    """The targets that count on all ranks of the group, or their weight."""
    total = torch.zeros((), dtype=torch.float64)
    for rank in group:
        _, target, *rest = calls[rank].operands
        valid = target[target != ignore_index]
        weight = rest[0] if rest else None
        total = total + (valid.numel() if weight is None else weight[valid].sum())
    return total


def _mean(
    calls: Sequence[RankCall],
    sums: Sequence[torch.Tensor],
    rank: int,
    group: list[int],
    ignore_index: int,
) -> torch.Tensor:
    """Of all ranks of the group, of whose sums a rank makes the gradient of its own."""
    parts = [sums[r] if r == rank else sums[r].detach() for r in group]
    return torch.stack(parts).sum() / _count(calls, group, ignore_index)


def cross_entropy_sharded(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """Means of all ranks, or local sums."""
    sums = []
    for call in calls:
        logits, target, weight = call.operands
        reduction, ignore_index, smoothing = call.extra
        loss = F.cross_entropy(
            logits,
            target,
            weight,
            ignore_index=ignore_index,
            reduction="sum",
            label_smoothing=smoothing,
        )
        sums.append(loss)
    if reduction != MEAN:
        return sums
    return [
        _mean(calls, sums, rank, call.groups[0], ignore_index) for rank, call in enumerate(calls)
    ]


def nll_loss_sharded(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """Means of all ranks."""
    sums = []
    for call in calls:
        log_probs, target, weight = call.operands
        (ignore_index,) = call.extra
        loss = F.nll_loss(log_probs, target, weight, ignore_index=ignore_index, reduction="sum")
        sums.append(loss)
    return [
        _mean(calls, sums, rank, call.groups[0], ignore_index) for rank, call in enumerate(calls)
    ]


def cross_entropy_vocab(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """The loss of the logits of all ranks of the vocabulary group, joined in the
    order of their offsets."""
    sums = []
    for rank, call in enumerate(calls):
        reduction, ignore_index, smoothing, *_ = call.extra
        vocabulary, _ = call.groups
        by_offset = sorted(vocabulary, key=lambda r: calls[r].extra[4])
        widths = [calls[r].operands[0].shape[1] for r in by_offset]
        offsets = [calls[r].extra[4] for r in by_offset]
        assert offsets == [0, *itertools.accumulate(widths[:-1])], offsets
        logits = torch.cat(
            [
                calls[r].operands[0] if r == rank else calls[r].operands[0].detach()
                for r in by_offset
            ],
            1,
        )
        loss = F.cross_entropy(
            logits,
            call.operands[1],
            ignore_index=ignore_index,
            reduction="sum",
            label_smoothing=smoothing,
        )
        sums.append(loss)
    if reduction != MEAN:
        return sums
    return [
        _mean(calls, sums, rank, call.groups[1] or [rank], ignore_index)
        for rank, call in enumerate(calls)
    ]


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
        momentum, eps, channel_begin, samples = call.extra
        rows = [calls[r].operands[0].shape[0] for r in call.groups[0] or [rank]]
        assert samples == (rows if len(set(rows)) > 1 else [])
        shape = [-1] + [1] * (x.dim() - 2)
        mean, variance = (moment.reshape(shape) for moment in moments[rank][:2])
        result = (x - mean) / (variance + eps).sqrt()
        if weight is not None:
            result = result * weight.reshape(shape)
        results.append(result if bias is None else result + bias.reshape(shape))
        if running_mean is not None:
            blocks = call.groups[1] or [rank]
            before = blocks[: blocks.index(rank)]
            assert channel_begin == sum(calls[r].operands[0].shape[1] for r in before)
            for running, index in ((running_mean, 0), (running_var, 2)):
                new = torch.cat([moments[r][index] for r in blocks]).detach()
                running.copy_((1 - momentum) * running + momentum * new)
    return results


Step = Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor]], list[torch.Tensor]]


def _lstm_step(x: torch.Tensor, h: torch.Tensor, states: list[torch.Tensor]) -> list[torch.Tensor]:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


def _gru_step(x: torch.Tensor, h: torch.Tensor, states: list[torch.Tensor]) -> list[torch.Tensor]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    return [(1 - z) * (xn + r * hn).tanh() + z * states[0]]


def _recurrent(calls: Sequence[RankCall], num_states: int, step: Step) -> list[list[torch.Tensor]]:
    """Each group runs the layer of its ranks' units; the input part of their gates is that of
    the rank's own input."""
    whole: dict[tuple[int, ...], list[torch.Tensor]] = {}
    results = []
    for rank, call in enumerate(calls):
        (group,) = call.groups
        if tuple(group) not in whole:
            whole[tuple(group)] = _run_layer([calls[r] for r in group], num_states, step)
        part = group.index(rank)
        results.append([tensor.chunk(len(group), 2)[part] for tensor in whole[tuple(group)]])
    return results


def _run_layer(calls: Sequence[RankCall], num_states: int, step: Step) -> list[torch.Tensor]:
    states = [torch.cat([c.operands[1 + i][0] for c in calls], -1) for i in range(num_states)]
    first_weight = 1 + num_states
    inputs, recurrent = [], []
    for call in calls:
        x = call.operands[0].transpose(0, 1) if call.extra[0] else call.operands[0]
        w_ih, w_hh, *biases = call.operands[first_weight:]
        inputs.append(_gates(x, w_ih, biases[0] if biases else None))
        recurrent.append((w_hh, biases[1] if biases else None))
    outputs = []
    for x in torch.cat(inputs, -1):
        h = torch.cat([_gates(states[0], *pair) for pair in recurrent], -1)
        states = step(x.flatten(-2), h.flatten(-2), states)
        outputs.append(states[0])
    output = torch.stack(outputs, 1 if calls[0].extra[0] else 0)
    return [output, *(state[None] for state in states)]


def _gates(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Of some units, ``[..., gates, units]``."""
    gates = torch.einsum("...k,gnk->...gn", x, weight)
    return gates if bias is None else gates + bias


def lstm_shard(calls: Sequence[RankCall]) -> list[list[torch.Tensor]]:
    return _recurrent(calls, 2, _lstm_step)


def gru_shard(calls: Sequence[RankCall]) -> list[list[torch.Tensor]]:
    return _recurrent(calls, 1, _gru_step)


def masked_scatter_shard(calls: Sequence[RankCall]) -> list[torch.Tensor]:
    """A rank takes from the source behind what the ranks before it take."""
    counts = [int(mask.expand_as(x).sum()) for x, mask, _ in (call.operands for call in calls)]
    results = []
    for rank, call in enumerate(calls):
        x, mask, source = call.operands
        start = sum(counts[r] for r in call.groups[0] if r < rank)
        results.append(x.masked_scatter(mask, source.flatten()[start:]))
    return results


REFERENCES: dict[str, Reference] = {
    "tensoropt.masked_scatter_shard.default": masked_scatter_shard,
    "tensoropt.embedding_shard.default": embedding_shard,
    "tensoropt.gather_shard.default": gather_shard,
    "tensoropt.embedding_bag_shard.default": embedding_bag_shard,
    "tensoropt.grouped_mm_shard.default": grouped_mm_shard,
    "tensoropt.routed_experts_shard.default": routed_experts_shard,
    "tensoropt.balanced_causal_attention.default": balanced_causal_attention,
    "tensoropt.cross_entropy_sharded.default": cross_entropy_sharded,
    "tensoropt.nll_loss_sharded.default": nll_loss_sharded,
    "tensoropt.cross_entropy_vocab.default": cross_entropy_vocab,
    "tensoropt.batch_norm_sharded.default": batch_norm_sharded,
    "tensoropt.lstm_shard.default": lstm_shard,
    "tensoropt.gru_shard.default": gru_shard,
}
