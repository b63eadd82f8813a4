"""Batches of a few rows, and of as many rows as a graph is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Dims = Sequence[int | None]  # along which each input of a call has rows of the batch; None: none


def few_rows(values: Sequence[Any], dims: Dims, count: int) -> list[Any]:
    """The first rows, ``count`` at most, of inputs that have rows; the others as they are."""
    return [
        value if dim is None else value.narrow(dim, 0, min(count, value.shape[dim]))
        for value, dim in zip(values, dims, strict=True)
    ]


def repeated_rows(values: Sequence[Any], dims: Dims, times: int) -> list[Any]:
    """The batch with all of its rows so many times."""
    return [
        value if dim is None or times == 1 else torch.cat([value] * times, dim)
        for value, dim in zip(values, dims, strict=True)
    ]


def rows_of_batch(values: Sequence[Any], dims: Dims) -> int:
    """How many there are; 0: no input has any."""
    for value, dim in zip(values, dims, strict=True):
        if dim is not None:
            return int(value.shape[dim])
    return 0


def likely_dims(values: Sequence[Any]) -> list[int | None]:
    """Where inputs have rows, of which nobody says: dim 0, if it is as long as that of the
    first."""
    sizes = [len(v) if isinstance(v, torch.Tensor) and v.dim() > 0 else None for v in values]
    rows = next((size for size in sizes if size is not None), None)
    return [0 if size is not None and size == rows else None for size in sizes]
