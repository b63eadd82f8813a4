"""Capture of a model that is on the meta device, wholly or in part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


def is_on_meta(model: nn.Module) -> bool:
    """Whether any parameter or buffer is on the meta device."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def to_meta(arguments: Any) -> Any:
    """The same containers with tensors on the meta device."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)


@contextmanager
def all_on_meta(model: nn.Module) -> Iterator[None]:
    """Operators refuse tensors of several devices, so a model that is partly on the
    meta device is on it wholly as long as this lasts."""
    before = []
    twins: dict[int, torch.Tensor] = {}  # tied tensors stay tied
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            before.append((own, dict(own)))
            for name, tensor in before[-1][1].items():
                if tensor is not None and not tensor.is_meta:
                    own[name] = twins.setdefault(id(tensor), _twin(tensor))  # type: ignore[assignment]
    try:
        yield
    finally:
        for own, tensors in before:
            own.update(tensors)  # type: ignore[arg-type]


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    twin = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin
