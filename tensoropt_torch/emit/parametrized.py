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


def reading_members(kind: Any) -> dict[str, Any]:
    """What a stand-in for a module of this class has in place of the class's own members, so
    that ``layer.weight`` reads as in the model; nothing for other classes."""
    if not issubclass(kind, ParametrizationList):
        return {}

    @functools.wraps(kind.forward)
    def forward(self: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = kind.forward(_real(self, kind))
        return weight

    return {"forward": forward, "right_inverse": _refuse_assignment}


def _real(stand_in: nn.Module, kind: Any) -> nn.Module:
    """A module that computes, with the whole parameters. Collective where ranks have parts."""
    made: nn.Module = object.__new__(kind)
    attributes = dict(vars(stand_in))
    attributes["_parameters"] = {
        name: _whole(parameter) for name, parameter in stand_in._parameters.items()
    }
    attributes["_modules"] = {
        name: None if child is None else _real(child, original_class(child))
        for name, child in stand_in._modules.items()
    }
    vars(made).update(attributes)
    return made


def original_class(stand_in: nn.Module) -> Any:
    """Of which the class of a stand-in is made: its last base."""
    return type(stand_in).__bases__[-1]


def _whole(parameter: torch.Tensor | None) -> torch.Tensor | None:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def _refuse_assignment(self: Any, value: torch.Tensor) -> NoReturn:
    raise TensorOptError(
        "a parametrised weight of a parallel module was assigned: assign it before parallelize, "
        "or load the parameters that it is computed from by load_state_dict"
    )
