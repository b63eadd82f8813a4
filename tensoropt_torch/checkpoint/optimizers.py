"""States of optimizers as one process has them: put together, and given back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement
from torch.utils import _pytree as pytree

from tensoropt_torch.checkpoint.stages import GroupsOfStages, states_of_stages
from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.steps.first_states import states_are_all_loaded
from tensoropt_torch.steps.whole_step import is_parameter_wise
from tensoropt_torch.values.parts import take_part
from tensoropt_torch.values.placements import dtensor_of


@doing("full_optimizer_state_dict")
def full_optimizer_state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What ``state_dict()`` of the optimizer would be in one process, on rank 0: whole tensors in
    the memory of the CPU; an empty dict on other ranks. Collective.

    Args:
        optimizer: of parameters of a parallel module. In stages each rank's has those of its stage,
            in the order of the model, in the groups that one of the whole model would have.

    Raises:
        TensorOptError: on every rank; its groups are others on other ranks.
    """
    groups = GroupsOfStages.of(optimizer)
    if groups is not None:
        return states_of_stages(optimizer, groups)
    keep = is_first()
    state = optimizer.state_dict()
    whole = pytree.tree_map_only(torch.Tensor, lambda t: whole_tensor(t, keep), state)
    return dict(whole) if keep else {}


@doing("load_optimizer")
def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """``optimizer.load_state_dict(state)`` with whole tensors, as ``save`` and
    ``full_optimizer_state_dict`` give them: this rank takes its part of each. Every rank gives
    the same. Collective where the parameters are of stages.

    Args:
        optimizer: made with the parameters of a parallel module, in the order and groups of
            the optimizer that the state is of; in stages with those that the rank has of them.

    Raises:
        TensorOptError: a state is no tensor of its parameter's shape, or of other groups.
    """
    groups = GroupsOfStages.of(optimizer)
    if groups is not None:
        state = groups.own_states(state)
    if is_parameter_wise(optimizer):  # its states are whole
        optimizer.load_state_dict({**state})
        states_are_all_loaded(optimizer)
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [i for group in state["param_groups"] for i in group["params"]]
    cut = dict(state["state"])
    for index, parameter in zip(indices, parameters, strict=False):  # PyTorch compares lengths
        if isinstance(parameter, DTensor) and index in cut:
            cut[index] = {name: _part(value, parameter, name) for name, value in cut[index].items()}
    optimizer.load_state_dict({**state, "state": cut})
    states_are_all_loaded(optimizer)


def _part(value: Any, parameter: DTensor, name: str) -> Any:
    """Of a state of a parameter, in the parameter's layout; numbers are as they are."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or isinstance(value, DTensor):
        return value
    if value.shape != parameter.shape:
        raise TensorOptError(
            f"the state '{name}' of a parameter of shape {tuple(parameter.shape)} has shape "
            f"{tuple(value.shape)}; make the optimizer with the parameters in the order of the one "
            "whose state this is, and keep states of other shapes with torch.distributed.checkpoint"
        )
    mesh = parameter.device_mesh
    placements: tuple[Placement, ...] = parameter.placements
    local = take_part(value, mesh, placements).to(parameter.to_local().device, copy=True)
    return dtensor_of(local, mesh, placements, value)
