"""Batches of a few rows, and of as many rows as a graph is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def few_rows(values: Sequence[Any], dims: Sequence[int | None], count: int) -> list[Any]:
    """The first rows of those inputs that hold rows of the batch, the others as they are.

    Args:
        values: the inputs of a call.
        dims: in which of their dims they may have rows, None: in none; those do that have as
            many as the first.
        count: how many rows, at most.
    """
    rows = rows_of_batch(values, dims)
    return [
        value.narrow(dim or 0, 0, min(count, rows)) if _has_rows(value, dim, rows) else value
        for value, dim in zip(values, dims, strict=True)
    ]


def repeated_rows(values: Sequence[Any], dims: Sequence[int | None], times: int) -> list[Any]:
    """The batch with all of its rows so many times."""
    rows = rows_of_batch(values, dims)
    return [
        torch.cat([value] * times, dim or 0) if times > 1 and _has_rows(value, dim, rows) else value
        for value, dim in zip(values, dims, strict=True)
    ]


def rows_of_batch(values: Sequence[Any], dims: Sequence[int | None]) -> int:
    """How many there are; 0: no input has any."""
    for value, dim in zip(values, dims, strict=True):
        if dim is not None and isinstance(value, torch.Tensor) and value.dim() > dim:
            return value.shape[dim]
    return 0


def _has_rows(value: Any, dim: int | None, rows: int) -> bool:
    if dim is None or not isinstance(value, torch.Tensor):
        return False
    return value.dim() > dim and value.shape[dim] == rows
