"""Weights of ``torch.nn.utils.parametrize`` in a parallel module, which are computed where
somebody reads them."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import ParametrizationList

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.real_modules import real_module


def reading_members(kind: Any) -> dict[str, Any]:
    """What a stand-in for a module of this class has in place of the class's own members, so
    that ``layer.weight`` reads as in the model; nothing for other classes."""
    if not issubclass(kind, ParametrizationList):
        return {}

    @functools.wraps(kind.forward)
    def forward(self: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = kind.forward(real_module(self, _whole))
        return weight

    return {"forward": forward, "right_inverse": _refuse_assignment}


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    """Collective where ranks have parts."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def _refuse_assignment(self: Any, value: torch.Tensor) -> NoReturn:
    raise TensorOptError(
        "a parametrised weight of a parallel module was assigned: assign it before parallelize, "
        "or load the parameters that it is computed from by load_state_dict"
    )
