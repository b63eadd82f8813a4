"""Averages of weights that callbacks of Lightning keep (``WeightAveraging``,
``StochasticWeightAveraging``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel

from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.runtime.stage_groups import refuse_stages
from tensoropt_torch.values.state_dicts import load_by_parts

_WHAT_IS_AVERAGED = "current_model_state"  # of a checkpoint whose weights are the averages


def share_averages(callbacks: Iterable[Any], module: LightningModule) -> None:
    """Callbacks copied the module before its parts were in place: from now on each rank's copy has
    the rank's parts of parameters and buffers, as the module has.

    Raises:
        TensorOptError: the module is in stages, of which a file would have those of one.
    """
    for callback in callbacks:
        average = getattr(callback, "_average_model", None)
        if average is not None:
            refuse_stages(
                module.parameters(),
                type(callback).__name__,
                "leave it out, or plan without stages (find_strategy)",
            )
        if isinstance(average, AveragedModel):
            average = average.module
        if isinstance(average, LightningModule):
            _take_layouts(average, module)
            load_by_parts(average)


def with_whole_tensors(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What callbacks put into a checkpoint, of which rank 0 writes one file. Collective; the
    other ranks keep none of the whole tensors."""
    return {name: _whole(value) for name, value in checkpoint.items()}


def tell_averages(checkpoint: dict[str, Any], module: LightningModule) -> None:
    """Callbacks look for averages where the weights are in a checkpoint, which the strategy has
    loaded into the module."""
    if _WHAT_IS_AVERAGED in checkpoint:
        checkpoint.setdefault("state_dict", module.state_dict())


def _whole(value: Any) -> Any:
    if isinstance(value, DTensor):
        whole = whole_tensor(value, is_first())
        return torch.empty(0) if whole is None else whole
    if isinstance(value, dict):
        return type(value)((name, _whole(item)) for name, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_whole(item) for item in value)
    return value


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
