"""Whether ranks got the inputs that a plan says: the same global batch, or a share each."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import gather

MOST_BYTES = 2**20  # of a tensor that are looked at


def check_inputs(
    names: Sequence[str], values: Sequence[Any], is_shared_out: Callable[[str], bool]
) -> None:
    """Compares what the ranks of the job got. Collective.

    Raises:
        TensorOptError: on every rank; an input that all should have alike differs.
    """
    tensors = {
        name: _digest(value)
        for name, value in zip(names, values, strict=True)
        if isinstance(value, torch.Tensor)
    }
    reports = gather(tensors)
    if len(reports) == 1:
        return
    for name in tensors:
        other = next((rank for rank, r in enumerate(reports) if r[name] != reports[0][name]), None)
        if other is not None and not is_shared_out(name):
            raise TensorOptError(
                f"input '{name}' is not the same on rank 0 and on rank {other}, but the plan was "
                "made for inputs that every rank gets whole (inputs='replicated'); give every "
                "rank the same global batch (a sampler without shards, equal seeds), or plan with "
                "inputs='sharded' and give each its own share"
            )
    shares = [name for name in tensors if is_shared_out(name)]
    if shares and all(len({r[name] for r in reports}) == 1 for name in shares):
        warnings.warn(
            f"all ranks got equal inputs ({', '.join(shares)}), but the plan was made for a share "
            "of the batch on each (inputs='sharded'): give each rank other samples, as "
            "DistributedSampler does, or plan with inputs='replicated'",
            stacklevel=2,
        )


def _digest(tensor: torch.Tensor) -> str:
    """Of the first elements; what ranks get by mistake differs early."""
    count = MOST_BYTES // tensor.element_size()
    taken = tensor.detach().reshape(-1)[:count].contiguous().cpu()
    return hashlib.sha256(taken.view(torch.uint8).numpy().tobytes()).hexdigest()
