"""Batches of which each rank has its own rows, padded to the sizes of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from tensoropt_torch.errors import TensorOptError, check_choice
from tensoropt_torch.runtime.agreement import gather
from tensoropt_torch.runtime.lost_ranks import doing

B = TypeVar("B", bound=Mapping[str, Any])
_Kinds = dict[str, tuple[tuple[int, ...], str]]  # shape and dtype, by name


@doing("pad_together")
def pad_together(batch: B, padding: Mapping[str, float], *, side: str = "right") -> B:
    """A rank's batch with lengths that are those of the longest on any rank. Collective.

    A collator pads to the longest of its own samples, so that ranks come with other lengths. What
    all ranks compute then is what one process does with the batch of all::

        values = {"input_ids": tokenizer.pad_token_id, "attention_mask": 0, "labels": -100}
        for batch in loader:
            loss = parallel(**tensoropt_torch.pad_together(batch, values)).loss

    Args:
        batch: tensors by name, with rows in dim 0, of which ranks may have different numbers;
            what is no tensor stays as it is.
        padding: what a tensor is filled up with; one that has none must be as long on all ranks.
        side: ``"right"`` or ``"left"``, as the tokenizer pads.

    Raises:
        TensorOptError: on every rank; ranks have other names, dims or dtypes, or a tensor whose
            lengths differ has no padding.
    """
    check_choice("side", side, ("right", "left"))
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    of_ranks = gather({name: _kind(tensor) for name, tensor in tensors.items()})
    lengths = _lengths(of_ranks, padding)
    padded = {
        name: _padded(tensor, lengths[name], padding, name, side)
        for name, tensor in tensors.items()
    }
    result: Any = type(batch)({**batch, **padded})  # type: ignore[call-arg]
    return result  # type: ignore[no-any-return]


def _kind(tensor: torch.Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype)


def _lengths(of_ranks: Sequence[_Kinds], padding: Mapping[str, float]) -> dict[str, list[int]]:
    """The largest size on any rank of each dim but the rows."""
    first, found = of_ranks[0], {}
    for rank, kinds in enumerate(of_ranks):
        if kinds.keys() != first.keys():
            raise TensorOptError(
                f"rank {rank} has a batch of {', '.join(kinds)}, rank 0 of {', '.join(first)}; "
                "give pad_together the same names on all ranks"
            )
    for name, (shape, dtype) in first.items():
        shapes = [kinds[name][0] for kinds in of_ranks]
        for rank, kinds in enumerate(of_ranks):
            if (len(kinds[name][0]), kinds[name][1]) != (len(shape), dtype):
                raise TensorOptError(
                    f"'{name}' is {kinds[name][1]} {list(kinds[name][0])} on rank {rank}, {dtype} "
                    f"{list(shape)} on rank 0; only lengths may differ"
                )
        found[name] = [max(sizes) for sizes in list(zip(*shapes, strict=True))[1:]]
        if name not in padding and any(list(other[1:]) != found[name] for other in shapes):
            raise TensorOptError(
                f"'{name}' has other lengths on other ranks ({', '.join(map(str, shapes))}), and "
                f"no padding: pad_together(batch, {{'{name}': 0, ...}})"
            )
    return found


def _padded(
    tensor: torch.Tensor,
    lengths: Sequence[int],
    padding: Mapping[str, float],
    name: str,
    side: str,
) -> torch.Tensor:
    """The tensor itself, if it is as long."""
    if list(tensor.shape[1:]) == lengths:
        return tensor
    result = tensor.new_full((len(tensor), *lengths), padding[name])
    place = [slice(None)]
    for size, length in zip(tensor.shape[1:], lengths, strict=True):
        place.append(slice(size) if side == "right" else slice(length - size, length))
    result[tuple(place)] = tensor
    return result
