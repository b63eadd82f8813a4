"""A run kept in one file of ``torch.save``, as the program of one process writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement
from torch.utils import _pytree as pytree

from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.runtime.stage_groups import refuse_stages
from tensoropt_torch.steps.first_states import states_are_all_loaded
from tensoropt_torch.steps.whole_step import is_parameter_wise
from tensoropt_torch.values.parts import take_part
from tensoropt_torch.values.placements import dtensor_of


@doing("save")
def save(state: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save`` of what one process would have: tensors of ``state``, in any containers,
    are whole and on the CPU. Collective; rank 0 writes, and all go on when it is done.

    The state dicts of a parallel module and of its optimizer become those of the model, so
    that ``torch.load`` and ``load_state_dict`` of one process read them. Tensors are gathered
    one by one; rank 0 needs memory for all of them.

    Raises:
        TensorOptError: on every rank; ``path`` is none, or the state is of a stage.
        Whatever keeps rank 0 from writing, on every rank.
    """
    leaves = pytree.tree_leaves(state)

    def check() -> None:
        if not isinstance(path, str | os.PathLike):
            raise TensorOptError(
                f"path is a {type(path).__name__}; give a path, after the state: save(state, path)"
            )
        refuse_stages(leaves, "save", "write full_state_dict(parallel) on rank 0")

    on_all_ranks(check)
    keep = is_first()
    gathered: dict[int, Any] = {}

    def whole(tensor: torch.Tensor) -> Any:
        if id(tensor) not in gathered:
            gathered[id(tensor)] = whole_tensor(tensor, keep)
        return gathered[id(tensor)]

    made = pytree.tree_map_only(torch.Tensor, whole, state)
    on_all_ranks(lambda: torch.save(made, path) if keep else None)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """``optimizer.load_state_dict(state)`` with whole tensors, as ``save`` keeps them: this
    rank takes its part of each. Every rank gives the same.

    Args:
        optimizer: made with the parameters of a parallel module, in the order and groups of
            the optimizer that the state is of.

    Raises:
        TensorOptError: a state is no tensor of its parameter's shape.
    """
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
