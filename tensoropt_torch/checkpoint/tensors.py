"""Whole tensors on the rank that writes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tensoropt_torch.runtime.agreement import is_distributed


def whole_tensor(value: Any, keep: bool) -> Any:
    """On the CPU; what is no tensor is as it is. Collective for a DTensor; None where it is not
    kept."""
    if not isinstance(value, torch.Tensor):
        return value
    whole = value.detach()
    if isinstance(whole, DTensor):
        whole = whole.full_tensor()
    return whole.to("cpu", copy=True) if keep else None


def is_first() -> bool:
    """Whether this rank is the one that writes."""
    return not is_distributed() or dist.get_rank() == 0
