"""Batches of which the ranks have shares, as of different sizes: each rank gets the whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tensoropt_torch.calls.call_kind import ModuleCall, TensorKind
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.space.rows import OutputRows


@dataclass(frozen=True)
class Shares:
    """How many rows of the batch each rank has, or how many parts of as many rows."""

    rows: tuple[int, ...]

    @staticmethod
    def equal() -> Shares:
        """Of ranks that have inputs of the same shapes."""
        return Shares((1,) * dist.get_world_size())

    def gather(self, call: ModuleCall, dims: Sequence[int | None]) -> ModuleCall:
        """The call with the whole batch, of which inputs have the rows in these dims.
        Collective.

        Raises:
            TensorOptError: an input requires a gradient, which would have to be cut again.
        """
        if any(isinstance(kind, TensorKind) and kind.requires_grad for kind in call.kind.inputs):
            raise TensorOptError(
                f"the ranks have {', '.join(map(str, self.rows))} rows of the batch, and an input "
                "requires a gradient; give shares of one size (drop_last=True)"
            )
        values = [
            self._whole(value, dim, self._each(kind, dim))
            if dim is not None and isinstance(kind, TensorKind) and _has(kind, dim)
            else value
            for value, kind, dim in zip(call.values, call.kind.inputs, dims, strict=True)
        ]
        inputs = tuple(
            replace(kind, shape=resized(kind.shape, dim, self._each(kind, dim) * sum(self.rows)))
            if dim is not None and isinstance(kind, TensorKind) and _has(kind, dim)
            else kind
            for kind, dim in zip(call.kind.inputs, dims, strict=True)
        )
        return ModuleCall(replace(call.kind, inputs=inputs, gathered=True), values)

    def cut(self, outputs: Any, rows: Sequence[OutputRows]) -> Any:
        """The rank's rows of outputs that have those of the whole batch."""
        leaves, spec = pytree.tree_flatten(outputs)
        found = [self._cut(*item) for item in zip(leaves, rows, strict=True)]
        return pytree.tree_unflatten(found, spec)

    def _cut(self, output: Any, rows: OutputRows) -> Any:
        total, rank = sum(self.rows), dist.get_rank()
        if not isinstance(output, torch.Tensor) or rows.dim is None:
            return output
        each, rest = divmod(output.shape[rows.dim], total)
        if rest != 0:
            raise TensorOptError(
                f"an output of shape {list(output.shape)} has its rows in dim {rows.dim}, which "
                f"the {total} rows of the batch do not divide; give shares of one size "
                "(drop_last=True)"
            )
        place = (rows.dim, each * sum(self.rows[:rank]), each * self.rows[rank])
        taken: torch.Tensor = _Rows.apply(output, *place)  # type: ignore[no-untyped-call]
        return taken

    def _each(self, kind: TensorKind, dim: int) -> int:
        """How many entries of an input make one of ``rows``."""
        own = self.rows[dist.get_rank()]
        return kind.shape[dim] // own if own else 1

    def _whole(self, share: torch.Tensor, dim: int, each: int) -> torch.Tensor:
        most = each * max(self.rows)
        padded = share
        if share.shape[dim] < most:
            padded = share.new_zeros(resized(share.shape, dim, most))
            padded.narrow(dim, 0, share.shape[dim]).copy_(share)
        padded = padded.contiguous()
        parts = [torch.empty_like(padded) for _ in self.rows]
        with waiting():
            dist.all_gather(parts, padded)
        own = zip(parts, self.rows, strict=True)
        return torch.cat([part.narrow(dim, 0, each * rows) for part, rows in own], dim)


class _Rows(torch.autograd.Function):
    """Rows of a tensor that all ranks have; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int, start: int, count: int) -> torch.Tensor:
        ctx.place = (whole.shape, dim, start, count)
        return whole.narrow(dim, start, count).clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        whole: torch.Tensor = _Whole.apply(gradient, *ctx.place)  # type: ignore[no-untyped-call]
        return whole, None, None, None


class _Whole(torch.autograd.Function):
    """The tensor of which each rank has some rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, shape: torch.Size, dim: int, start: int, count: int
    ) -> torch.Tensor:
        ctx.place = (dim, start, count)
        whole = rows.new_zeros(shape)
        whole.narrow(dim, start, count).copy_(rows)
        with waiting():
            dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        rows: torch.Tensor = _Rows.apply(gradient, *ctx.place)  # type: ignore[no-untyped-call]
        return rows, None, None, None, None


def rows_of(call: ModuleCall, dims: Sequence[int | None]) -> int:
    """How many rows of the batch this rank has, of inputs that have them in these dims.

    Raises:
        TensorOptError: not all of these inputs have as many.
    """
    found = [
        (kind.shape, kind.shape[dim])
        for kind, dim in zip(call.kind.inputs, dims, strict=True)
        if dim is not None and isinstance(kind, TensorKind) and _has(kind, dim)
    ]
    if len({rows for _, rows in found}) != 1:
        raise TensorOptError(
            f"the ranks have different shares of a batch, and inputs of this rank have "
            f"{', '.join(str(shape) for shape, _ in found)}; give all inputs that are shared out "
            "the same dim 0, name another dim that has the rows, inputs={'hidden': 1}, or those "
            "that every rank gets whole: inputs={'mask': 'replicated'}"
        )
    return found[0][1]


def resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """The shape with another size of a dim."""
    return (*shape[:dim], size, *shape[dim + 1 :])


def _has(kind: object, dim: int) -> bool:
    return isinstance(kind, TensorKind) and dim < len(kind.shape)
