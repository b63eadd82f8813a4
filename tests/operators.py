"""The operators of ``libtensoropt_ops`` that graphs of ranks call by name, as functions with types.

``csrc/runtime`` documents each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tensoropt_torch.operators import OPS
from tensoropt_torch.runtime.ops import MEAN


def halo_exchange(
    x: torch.Tensor, dim: int, low: int, high: int, fill: float, group: str
) -> torch.Tensor:
    """The block ``x`` of a tensor split along ``dim`` over ``group``, in rank order,
    with the last ``low`` entries of the block before it and the first ``high`` ones
    of the block after it; ``fill`` where there is none.

    With ``high`` below 0 so many entries at the end are left out. In backward the
    gradients of borrowed entries are added where they came from.

    Raises:
        ValueError: a border is longer than a block.

    """
    result: torch.Tensor = OPS.halo_exchange(x, dim, low, high, fill, group)
    return result


def lstm_shard(
    input: torch.Tensor,
    states: tuple[torch.Tensor, torch.Tensor],
    weights: Sequence[torch.Tensor],
    group: str,
    batch_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An LSTM layer whose units are split over ``group``, u of them on each rank.

    Args:
        input: ``[t, b, i]``, whole; its gradient is a pending sum.
        states: h and c, ``[1, b, u]``.
        weights: of the gates of this rank's units: ``[4, u, i]``, ``[4, u, h]`` and, if
            there are any, the biases ``[4, u]``.
        group: the group that splits the units, in rank order.
        batch_first: input and output are ``[b, t, ...]``.

    Returns:
        The output ``[t, b, u]``, and the last h and c.

    """
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    result = OPS.lstm_shard(input, *states, *_with_biases(weights), batch_first, group)
    return result


def gru_shard(
    input: torch.Tensor,
    h: torch.Tensor,
    weights: Sequence[torch.Tensor],
    group: str,
    batch_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A GRU layer whose units are split over ``group``.

    As ``lstm_shard`` with 3 gates; returns the output and the last h.
    """
    result: tuple[torch.Tensor, torch.Tensor]
    result = OPS.gru_shard(input, h, *_with_biases(weights), batch_first, group)
    return result


def _with_biases(weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    return (*weights, *[None] * (4 - len(weights)))


def embedding_shard(
    weight: torch.Tensor,
    index: torch.Tensor,
    offset: int,
    padding_idx: int = -1,
    wraps_at: int = 0,
) -> torch.Tensor:
    """Looks up rows of a table that is split by rows.

    Args:
        weight: ``[rows, ...]``, the rows from ``offset`` on.
        index: rows of the whole table, any shape.
        offset: the first row of this rank.
        padding_idx: a row of the whole table that gets no gradient; -1: none.
        wraps_at: the rows of the whole table, from the end of which negative indices
            count; 0: there are none.

    Returns:
        ``[*index.shape, ...]``; the sum over the ranks is the look-up.

    """
    result: torch.Tensor = OPS.embedding_shard(weight, index, offset, padding_idx, wraps_at)
    return result


def gather_shard(x: torch.Tensor, index: torch.Tensor, dim: int, offset: int) -> torch.Tensor:
    """``torch.gather`` from a tensor that is split along ``dim``.

    Args:
        x: the entries from ``offset`` on.
        index: positions in all entries.
        dim: the dim that is looked up.
        offset: the first entry of this rank.

    Returns:
        The shape of ``index``; the sum over the ranks is the result.

    """
    result: torch.Tensor = OPS.gather_shard(x, index, dim, offset)
    return result


def embedding_bag_shard(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bags: tuple[int, int],
    row_offset: int = -1,
    per_sample_weights: torch.Tensor | None = None,
    mode: int = 0,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> torch.Tensor:
    """``torch.nn.functional.embedding_bag`` of some bags and some rows of a table.

    Args:
        weight: ``[rows, d]``, the rows from ``row_offset`` on.
        indices, offsets: ``[n]`` and ``[all bags]``, whole.
        bags: the first bag of this rank and how many it has.
        row_offset: the first row of this rank; -1: the table is whole.
        per_sample_weights: ``[n]``, whole, or None.
        mode: 0 sum, 1 mean, 2 maximum (of a whole table only).
        include_last_offset: ``offsets`` has the end of the last bag, too.
        padding_idx: a row that does not count (of a whole table only); -1: none.

    Returns:
        ``[bags, d]``; the sum over the ranks that share the table is the result.

    """
    result: torch.Tensor = OPS.embedding_bag_shard(
        weight,
        indices,
        offsets,
        per_sample_weights,
        mode,
        include_last_offset,
        padding_idx,
        row_offset,
        *bags,
    )[0]
    return result


def grouped_mm_shard(
    x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, first_group: int
) -> torch.Tensor:
    """Products of groups of rows with one matrix each, of some of the groups.

    Args:
        x: ``[t, k]``, all rows; those of a group lie together.
        weight: ``[groups, k, n]``, the matrices of the groups from ``first_group`` on.
        offsets: ``[all groups]``: the rows of group i end before ``offsets[i]``.
        first_group: the first group of this rank.

    Returns:
        ``[t, n]`` with zeros for rows of other groups; the sum over the ranks is the
        product.

    """
    result: torch.Tensor = OPS.grouped_mm_shard(x, weight, offsets, first_group)
    return result


@dataclass(frozen=True)
class ExpertCalls:
    """How experts compute.

    Attributes:
        product: the operator for rows sorted by group, ``[t, k] x [g, k, n] -> [t, n]``,
            ``aten::_grouped_mm`` or one with its first three arguments.
        activation: ``silu``, ``relu``, ``gelu`` or ``gelu_tanh``.
        gated: the activation of the first half of the columns is multiplied with the
            second half.
        transposed: matrices are given as linear layers have them, ``[e, w, d]`` and
            ``[e, d, f]``.
    """

    product: str
    activation: str
    gated: bool
    transposed: bool = False


@dataclass(frozen=True)
class ExpertHolders:
    """Which rank has which experts.

    Attributes:
        num_experts: those of all ranks.
        first_experts: the first expert of each rank of ``exchange_group``; without a
            group that of this rank.
        exchange_group: ranks with tokens of their own, which send rows to the experts of
            each other; empty: the others have the same tokens.
        units_group: the group that splits the inner dim; empty: none does.
    """

    num_experts: int
    first_experts: tuple[int, ...] = (0,)
    exchange_group: str = ""
    units_group: str = ""


def routed_experts_shard(
    x: torch.Tensor,
    routing: tuple[torch.Tensor, torch.Tensor],
    matrices: tuple[torch.Tensor, torch.Tensor],
    calls: ExpertCalls,
    holders: ExpertHolders,
) -> torch.Tensor:
    """Tokens through the experts that were chosen for them.

    Args:
        x: ``[n, d]``, tokens.
        routing: the experts chosen for each token and their weights, ``[n, k]``.
        matrices: of the experts of this rank, ``[e, d, w]`` and ``[e, f, d]``; w is 2 f
            with gates. A units group splits w of the first, f of the second.
        calls: what the experts compute.
        holders: where the experts are.

    Returns:
        ``[n, d]``; choices of experts that no rank of the exchange group has give zeros,
        and so does a sum over the units: the sum over those ranks is the result.

    """
    result: torch.Tensor = OPS.routed_experts_shard(
        x,
        *routing,
        *matrices,
        calls.product,
        calls.activation,
        calls.gated,
        calls.transposed,
        holders.num_experts,
        holders.first_experts,
        holders.exchange_group,
        holders.units_group,
    )
    return result


def balanced_causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: str,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Causal attention of query rows that are split over a group, which shares the work: later
    rows see more keys, so each rank computes half of its own rows and half of those of the block
    at the same distance from the other end. Collective.

    Args:
        query: ``[..., rows, e]``, the block of this rank, in the order of the group.
        key, value: of all positions, as in
            ``torch.nn.functional.scaled_dot_product_attention``.
        group: the name of the process group.
        dropout_p, scale, enable_gqa: as there.

    Returns:
        The rows of this rank's block.

    """
    result: torch.Tensor = OPS.balanced_causal_attention(
        query, key, value, dropout_p, scale, enable_gqa, group
    )
    return result


def cross_entropy_sharded(
    logits: torch.Tensor,
    target: torch.Tensor,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    count_group: str = "",
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross entropy of a share of the batch.

    Args:
        logits: ``[n, classes, ...]``, a share of the positions.
        target: ``[n, ...]``, class indices.
        reduction: ``MEAN`` (over the valid targets of all ranks, or their weight)
            or ``SUM``.
        ignore_index: targets with this value are not valid.
        label_smoothing: as in ``torch.nn.functional.cross_entropy``.
        count_group: the group that splits the positions; empty: none does.
        weight: ``[classes]``, or None.

    Returns:
        A scalar: the mean of all ranks, or the sum of this rank's share.

    """
    result: torch.Tensor = OPS.cross_entropy_sharded(
        logits, target, weight, reduction, ignore_index, label_smoothing, count_group
    )
    return result


def nll_loss_sharded(
    log_probs: torch.Tensor,
    target: torch.Tensor,
    ignore_index: int = -100,
    count_group: str = "",
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean negative log-likelihood of the batch, of which this is a share.

    As ``cross_entropy_sharded`` with log-probabilities instead of logits.
    """
    result: torch.Tensor = OPS.nll_loss_sharded(
        log_probs, target, weight, ignore_index, count_group
    )
    return result


def cross_entropy_vocab(
    logits: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    ignore_index: int,
    num_classes: int,
    offset: int,
    vocab_group: str,
    count_group: str = "",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross entropy of logits whose classes are split over ``vocab_group``.

    Args:
        logits: ``[n, local classes, ...]``, the classes from ``offset`` on.
        target: ``[n, ...]``, indices of all classes.
        reduction: ``MEAN`` or ``SUM``.
        ignore_index: targets with this value are not valid.
        num_classes: those of all ranks.
        offset: the first class of this rank.
        vocab_group: the group that splits the classes.
        count_group: the group that splits the positions; empty: none does.
        label_smoothing: as in ``torch.nn.functional.cross_entropy``.

    Returns:
        A scalar, equal on all ranks of ``vocab_group``: the mean of all ranks of
        ``count_group``, or the sum of the rank's positions.

    """
    result: torch.Tensor = OPS.cross_entropy_vocab(
        logits,
        target,
        reduction,
        ignore_index,
        label_smoothing,
        num_classes,
        offset,
        vocab_group,
        count_group,
    )
    return result


def batch_norm_sharded(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_begin: int = 0,
    samples: Sequence[int] = (),
    batch_group: str = "",
    channel_group: str = "",
) -> torch.Tensor:
    """Batch normalisation, in training, of a share of the batch and of the channels.

    Args:
        input: ``[n, c, ...]``; parts of the channels may differ in size.
        weight, bias: ``[c]``, of the channels of this rank.
        running_mean, running_var: of the channels of all ranks; updated in place,
            alike on every rank.
        momentum, eps: as in ``torch.nn.functional.batch_norm``.
        channel_begin: the first channel of this rank.
        samples: n of each rank of ``batch_group``; empty: all have as many.
        batch_group: the group that splits the batch; empty: none does.
        channel_group: the group that splits the channels; empty: none does, or
            there are no running statistics.

    Returns:
        The share of the output, normalised with the statistics of the whole batch.

    """
    result: torch.Tensor = OPS.batch_norm_sharded(
        input,
        weight,
        bias,
        running_mean,
        running_var,
        momentum,
        eps,
        channel_begin,
        samples,
        batch_group,
        channel_group,
    )
    return result


def await_gradients(
    xs: Sequence[torch.Tensor], queue: int, slots: Sequence[int]
) -> list[torch.Tensor]:
    """The parameters, unchanged. Their gradients leave the queue here. To be called before all
    that computes, since autograd then comes back last."""
    results: list[torch.Tensor] = OPS.await_gradients(xs, queue, slots)
    return results


def reshard_gradients(
    xs: Sequence[torch.Tensor],
    steps: Sequence[int],
    groups: Sequence[str],
    queue: int,
    slots: Sequence[int],
    *,
    reduce_dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """What ``await_gradients`` gave for these slots, unchanged. In backward this program is begun
    on the gradient of each, as soon as it is there, and not waited for.

    Raises:
        ValueError: the numbers of tensors and slots differ.

    """
    results: list[torch.Tensor] = OPS.reshard_gradients(
        xs, steps, groups, queue, slots, reduce_dtype=reduce_dtype
    )
    return results


def put_value(value: torch.Tensor, queue: int, slot: int) -> None:
    """Gives a value that was resharded before to ``reshard_parameter``."""
    OPS.put_value(value, queue, slot)


def reshard_parameter(
    x: torch.Tensor,
    forward: Sequence[int],
    forward_groups: Sequence[str],
    backward: Sequence[int],
    backward_groups: Sequence[str],
    queue: int,
    slot: int,
    *,
    dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``reshard`` of what ``await_gradients`` gave for this slot. Takes what
    ``begin_value`` or ``begin_gathers`` began, if one did. In backward the program of its
    gradient is begun, and not waited for."""
    result: torch.Tensor = OPS.reshard_parameter(
        x,
        forward,
        forward_groups,
        backward,
        backward_groups,
        queue,
        slot,
        dtype=dtype,
        reduce_dtype=reduce_dtype,
    )
    return result
