"""The last batch of an evaluation, which Accelerate fills up with samples from the beginning.

Metrics leave these samples out again, but the loss of the batch is one number. So the ranks give
the module the rows of the batch that one process would have, some of them none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

RowsDim = Callable[[str], int | None]


def rows_of_rank(accelerator: Any, have: int) -> int | None:
    """How many of the rows of this rank's batch, which has ``have``, one process would have too;
    None: all batches are full, or nobody knows."""
    state = accelerator.gradient_state
    if accelerator.num_processes == 1 or not state.end_of_dataloader or state.remainder <= 0:
        return None
    before = have * int(accelerator.process_index)
    return min(max(int(state.remainder) - before, 0), have)


def rows_in(batch: Mapping[str, Any], dim_of: RowsDim) -> int:
    """How many rows a batch has; 0: nothing in it has any."""
    for name, value in batch.items():
        dim = dim_of(name)
        if isinstance(value, torch.Tensor) and dim is not None and value.dim() > dim:
            return int(value.shape[dim])
    return 0


def cut(batch: Mapping[str, Any], dim_of: RowsDim, have: int, rows: int) -> dict[str, Any]:
    """The first rows of a batch that has ``have``."""
    return {name: _cut(value, dim_of(name), have, rows) for name, value in batch.items()}


def filled(values: Any, rows: int, have: int) -> Any:
    """Tensors of so many rows with zeros for those that they had; Accelerate cuts them off."""

    def fill(value: torch.Tensor) -> torch.Tensor:
        if value.dim() == 0 or len(value) != rows:
            return value
        return torch.cat([value, value.new_zeros((have - rows, *value.shape[1:]))])

    return pytree.tree_map_only(torch.Tensor, fill, values)


@contextmanager
def few_rows_expected() -> Iterator[None]:
    """Meanwhile nobody is warned that ranks have different numbers of rows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the ranks have .* rows of a batch")
        yield


def _cut(value: Any, dim: int | None, have: int, rows: int) -> Any:
    if isinstance(value, list) and len(value) == have:
        return value[:rows]
    if not isinstance(value, torch.Tensor) or dim is None or value.dim() <= dim:
        return value
    return value.narrow(dim, 0, rows) if value.shape[dim] == have else value
