"""Capture of a model that is on the meta device, wholly or in part."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tensoropt_torch.frontend.call_context import autocast_device


def is_on_meta(model: nn.Module) -> bool:
    """Whether any parameter or buffer is on the meta device."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def to_meta(arguments: Any) -> Any:
    """The same containers with tensors on the meta device."""
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), arguments)


@contextmanager
def all_on_meta(model: nn.Module) -> Iterator[None]:
    """Operators refuse tensors of several devices, so a model that is partly on the
    meta device is on it wholly as long as this lasts. An autocast of the meta device, which
    PyTorch does not know, is then one of the device at hand."""
    before = []
    twins: dict[int, torch.Tensor] = {}  # tied tensors stay tied
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            before.append((own, dict(own)))
            for name, tensor in before[-1][1].items():
                if tensor is not None and not tensor.is_meta:
                    own[name] = twins.setdefault(id(tensor), _twin(tensor))  # type: ignore[assignment]
    try:
        with _autocast_at_hand():
            yield
    finally:
        for own, tensors in before:
            own.update(tensors)  # type: ignore[arg-type]


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    twin = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(twin, requires_grad=tensor.requires_grad)
    return twin


@contextmanager
def _autocast_at_hand() -> Iterator[None]:
    """Inside, ``torch.autocast(x.device.type)`` of a tensor on the meta device is made for the
    device at hand."""
    made = torch.autocast.__init__

    @functools.wraps(made)
    def make(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        made(self, autocast_device() if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = make  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = made  # type: ignore[method-assign]
