"""Batches of a few rows, and of as many rows as a graph is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def few_rows(values: Sequence[Any], shared: Sequence[bool], count: int) -> list[Any]:
    """The first rows of those inputs that hold rows of the batch, the others as they are.

    Args:
        values: the inputs of a call.
        shared: which of them may have rows in dim 0; those do that have as many as the first.
        count: how many rows, at most.
    """
    rows = rows_of_batch(values, shared)
    return [
        value[: min(count, rows)] if _has_rows(value, is_shared, rows) else value
        for value, is_shared in zip(values, shared, strict=True)
    ]


def repeated_rows(values: Sequence[Any], shared: Sequence[bool], times: int) -> list[Any]:
    """The batch with all of its rows so many times."""
    rows = rows_of_batch(values, shared)
    return [
        torch.cat([value] * times) if times > 1 and _has_rows(value, is_shared, rows) else value
        for value, is_shared in zip(values, shared, strict=True)
    ]


def rows_of_batch(values: Sequence[Any], shared: Sequence[bool]) -> int:
    """How many there are; 0: no input has any."""
    for value, is_shared in zip(values, shared, strict=True):
        if is_shared and isinstance(value, torch.Tensor) and value.dim() > 0:
            return len(value)
    return 0


def _has_rows(value: Any, is_shared: bool, rows: int) -> bool:
    is_tensor = isinstance(value, torch.Tensor)
    return is_shared and is_tensor and value.dim() > 0 and len(value) == rows
