"""Averages of weights that callbacks of Lightning keep (``WeightAveraging``,
``StochasticWeightAveraging``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn
from torch.optim.swa_utils import AveragedModel


def share_averages(callbacks: Iterable[Any], module: LightningModule) -> None:
    """Callbacks copied the module before its parts were in place: from now on each rank's copy has
    the rank's parts of parameters and buffers, as the module has."""
    for callback in callbacks:
        average = getattr(callback, "_average_model", None)
        if isinstance(average, AveragedModel):
            average = average.module
        if isinstance(average, LightningModule):
            _take_layouts(average, module)


def _take_layouts(average: nn.Module, module: nn.Module) -> None:
    for path, parameter in module.named_parameters(remove_duplicate=False):
        owner, name = _place(average, path)
        owner._parameters[name] = nn.Parameter(
            parameter.detach().clone(), requires_grad=parameter.requires_grad
        )
    for path, buffer in module.named_buffers(remove_duplicate=False):
        owner, name = _place(average, path)
        owner._buffers[name] = buffer.detach().clone()


def _place(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name
