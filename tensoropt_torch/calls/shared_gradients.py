"""How gradients count that ranks give for what a call returned, where each has its own rows.

A call of ranks with shares of a batch returns three kinds of tensors:

- with rows: each rank has its own, and a gradient of its own for them; the ranks' are summed,
  which is what backward does with parts of a tensor;
- without rows, independent of the batch (a scale, a table): every rank has all of it, and a
  gradient of its own, which the ranks sum;
- without rows, of the batch: the loss, for which every rank gives the same gradient, which
  counts once; and others (a mean over the batch), for which the mean over ranks counts. That of
  equal gradients is the gradient itself.

Loops that were written for data parallelism train on the mean of the ranks' losses
(``averages``). There gradients of the first two kinds are divided by the number of ranks, and
gradients of rows among the inputs, which belong to a rank's own loss, multiplied with it:
so a call of what another call has returned is divided once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.space.rows import OutputRows


@dataclass(frozen=True)
class SharedGradients:
    """Of a call of ranks that have shares of the batch.

    Attributes:
        ranks: how many there are.
        outputs: where outputs have rows, without their containers.
        inputs: in which dim inputs have rows; None: they have none.
        averages: the loop trains on the mean of the ranks' losses.
        gathered: every rank computes the whole batch, and nothing is summed in backward; of
            outputs with rows each rank has got its own already, with gradients that are.
    """

    ranks: int
    outputs: Sequence[OutputRows]
    inputs: Sequence[int | None]
    averages: bool = False
    gathered: bool = False
    repeats: bool = False

    def entering(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, whose gradients become those of the rank's own loss."""
        if not (self.averages and torch.is_grad_enabled()):
            return list(inputs)
        ranks = self.ranks
        return [
            _hooked(value, lambda grad: grad * ranks)
            if dim is not None and _is_trained(value)
            else value
            for value, dim in zip(inputs, self.inputs, strict=True)
        ]

    def leaving(self, outputs: Any) -> Any:
        """The outputs, whose gradients count as they have to."""
        if not torch.is_grad_enabled():
            return outputs
        leaves, spec = pytree.tree_flatten(outputs)
        found = [self._leaving(*item) for item in zip(leaves, self.outputs, strict=True)]
        return pytree.tree_unflatten(found, spec)

    def _leaving(self, value: Any, rows: OutputRows) -> Any:
        counts = self._counted(rows) if _is_trained(value) else None
        return value if counts is None else _hooked(value, counts)

    def _counted(self, rows: OutputRows) -> Callable[[torch.Tensor], torch.Tensor] | None:
        if rows.is_loss:
            return None
        is_mean = self.averages or (rows.depends and rows.dim is None)
        factor = 1 / self.ranks if is_mean else 1.0
        if self.gathered and rows.dim is None:
            if self.repeats:
                raise TensorOptError(
                    "the ranks have different numbers of rows in this call, and it returns "
                    "something besides rows and losses that has gradients, which "
                    "on_out_of_memory='smaller' does not support: drop_last=True, or a sampler "
                    "that pads"
                )
            return lambda grad: _summed(grad * factor)
        return (lambda grad: grad * factor) if is_mean else None


def _summed(own: torch.Tensor) -> torch.Tensor:
    total: torch.Tensor = _Sum.apply(own)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """The sum of the ranks' tensors."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor) -> torch.Tensor:
        total = own.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def _is_trained(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _hooked(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The tensor under another name: what else uses it has another gradient."""
    hooked = tensor.view_as(tensor)
    hooked.register_hook(change)  # type: ignore[no-untyped-call]
    return hooked
