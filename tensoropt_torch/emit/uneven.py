"""Batches of which the ranks have shares of different sizes: each rank gets the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.call_kind import Call, TensorKind
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.lost_ranks import waiting


@dataclass(frozen=True)
class Shares:
    """How many rows of the batch each rank has."""

    rows: tuple[int, ...]

    def gather(self, call: Call, shared: Sequence[bool]) -> Call:
        """The call with the whole batch. Collective.

        Raises:
            TensorOptError: an input requires a gradient, which would have to be cut again.
        """
        if any(isinstance(kind, TensorKind) and kind.requires_grad for kind in call.kind.inputs):
            raise TensorOptError(
                f"the ranks have {', '.join(map(str, self.rows))} rows of the batch, and an input "
                "requires a gradient; give shares of one size (drop_last=True)"
            )
        values = [
            self._whole(value) if is_shared else value
            for value, is_shared in zip(call.values, shared, strict=True)
        ]
        inputs = tuple(
            replace(kind, shape=(sum(self.rows), *kind.shape[1:]))
            if is_shared and isinstance(kind, TensorKind)
            else kind
            for kind, is_shared in zip(call.kind.inputs, shared, strict=True)
        )
        return Call(replace(call.kind, inputs=inputs, gathered=True), values)

    def cut(self, outputs: Any) -> Any:
        """The rank's rows of outputs that have those of the whole batch."""
        total = sum(self.rows)

        def part(output: torch.Tensor) -> torch.Tensor:
            if output.dim() == 0 or output.shape[0] != total:
                return output
            rank = dist.get_rank()
            place = (sum(self.rows[:rank]), self.rows[rank])
            taken: torch.Tensor = _Rows.apply(output, *place)  # type: ignore[no-untyped-call]
            return taken

        return pytree.tree_map_only(torch.Tensor, part, outputs)

    def _whole(self, share: torch.Tensor) -> torch.Tensor:
        most = max(self.rows)
        padded = share.new_zeros((most, *share.shape[1:]))
        padded[: len(share)] = share
        parts = [torch.empty_like(padded) for _ in self.rows]
        dist.all_gather(parts, padded)
        return torch.cat([part[:rows] for part, rows in zip(parts, self.rows, strict=True)])


class _Rows(torch.autograd.Function):
    """Rows of a tensor that all ranks have; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, start: int, count: int) -> torch.Tensor:
        ctx.place = (whole.shape, start, count)
        return whole.narrow(0, start, count).clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        shape, start, count = ctx.place
        whole = gradient.new_zeros(shape)
        whole.narrow(0, start, count).copy_(gradient)
        with waiting():
            dist.all_reduce(whole)
        return whole, None, None


def rows_of(call: Call, shared: Sequence[bool]) -> int:
    """How many rows of the batch this rank has.

    Raises:
        TensorOptError: not all of its ``shared`` inputs have as many.
    """
    shapes = [
        kind.shape
        for kind, is_shared in zip(call.kind.inputs, shared, strict=True)
        if is_shared and isinstance(kind, TensorKind) and kind.shape
    ]
    if len({shape[0] for shape in shapes}) != 1:
        raise TensorOptError(
            f"the ranks have different shares of a batch, and inputs of this rank have "
            f"{', '.join(map(str, shapes))}; give all inputs that are shared out the same dim 0, "
            "or name those that every rank gets whole: inputs={'mask': 'replicated'}"
        )
    return shapes[0][0]
