"""The batch that plans are run with."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from tensoropt_torch.calls.call_kind import flatten
from tensoropt_torch.frontend import CapturedModel
from tensoropt_torch.plan import Settings

# Positional arguments, targets last, and keyword arguments.
Batch = tuple[tuple[Any, ...], dict[str, Any]]


def index_on_meta(batch: Batch) -> int | None:
    """Of the first input that is on the meta device."""
    for index, value in enumerate(pytree.tree_leaves(batch)):
        if isinstance(value, torch.Tensor) and value.is_meta:
            return index
    return None


def share_of(
    batch: Batch, captured: CapturedModel, settings: Settings, device: torch.device
) -> Batch:
    """What the rank gets of a global batch."""
    args, kwargs = batch
    values, spec = flatten(args, kwargs)

    def part(value: Any, name: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if settings.is_shared_out(name) and value.dim() > 0:
            value = value.chunk(dist.get_world_size())[dist.get_rank()].clone()
        return value.to(device)

    names = [source.names[0] for source in captured.inputs]
    parts = [part(value, name) for value, name in zip(values, names, strict=True)]
    shared: Batch = pytree.tree_unflatten(parts, spec)
    return shared
