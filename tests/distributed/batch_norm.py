"""Batch normalisation by groups of rows in one process, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn import functional

PLAIN = functional.batch_norm


@contextmanager
def batch_norm_in_groups(groups: int) -> Iterator[None]:
    """Inside, ``nn.BatchNorm`` in training normalises each of ``torch.chunk(x, groups)`` by
    itself, and moves its running statistics by the mean of what they would move by."""

    def grouped(
        x: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        running = (running_mean, running_var)
        if not training:
            return PLAIN(x, *running, weight, bias, False, momentum, eps)
        outputs, moved = [], []
        for rows in x.chunk(groups):
            own = [None if r is None else r.clone() for r in running]
            outputs.append(PLAIN(rows, *own, weight, bias, True, momentum, eps))
            moved.append(own)
        for tensor, parts in zip(running, zip(*moved, strict=True), strict=True):
            if tensor is not None:
                tensor.copy_(torch.stack(parts).mean(0))
        return torch.cat(outputs)

    with patch.object(functional, "batch_norm", grouped if groups > 1 else PLAIN):
        yield
