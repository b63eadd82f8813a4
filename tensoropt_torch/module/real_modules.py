"""Modules that compute, made of the stand-ins of a parallel module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Change = Callable[[torch.Tensor], torch.Tensor]


def real_module(stand_in: nn.Module, parameter: Change, buffer: Change | None = None) -> nn.Module:
    """What it stands for, with the same attributes, and with what is made of its parameters and
    buffers; without ``buffer`` its own buffers."""
    return _real(stand_in, parameter, buffer, {})


def original_class(stand_in: nn.Module) -> Any:
    """Of which the class of a stand-in is made: its last base."""
    return type(stand_in).__bases__[-1]


def _real(
    stand_in: nn.Module, parameter: Change, buffer: Change | None, made: dict[int, nn.Module]
) -> nn.Module:
    if id(stand_in) in made:
        return made[id(stand_in)]
    real: nn.Module = object.__new__(original_class(stand_in))
    made[id(stand_in)] = real
    attributes: dict[str, Any] = dict(vars(stand_in))
    attributes["_parameters"] = _changed(stand_in._parameters, parameter)
    if buffer is not None:
        attributes["_buffers"] = _changed(stand_in._buffers, buffer)
    attributes["_modules"] = {
        name: None if child is None else _real(child, parameter, buffer, made)
        for name, child in stand_in._modules.items()
    }
    vars(real).update(attributes)
    return real


def _changed(tensors: Any, change: Change) -> dict[str, torch.Tensor | None]:
    return {name: None if t is None else change(t) for name, t in tensors.items()}
