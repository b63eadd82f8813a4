"""States of optimizers by the names of parameters, as ``torch.distributed.checkpoint`` keeps them.

Of a stage PyTorch gives groups with its own parameters alone, and a checkpoint keeps the groups of
one rank. Here they are those of the whole model on all ranks, so that a run goes on with other
stages, or without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tensoropt_torch.checkpoint.stages import GroupsOfStages
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import gather, on_all_ranks


def named_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What ``get_optimizer_state_dict(module, optimizer)`` gives, with the groups of all stages.
    ``module`` may have the parallel module inside. Collective."""
    state: dict[str, Any] = _dcp_states().get_optimizer_state_dict(module, optimizer)
    groups = GroupsOfStages.of(optimizer)
    if groups is None:
        return state
    own = zip(groups.own, _names_of(module, optimizer), strict=True)
    pairs = {n: name for numbers, names in own for n, name in zip(numbers, names, strict=True)}
    known = {number: name for of_rank in gather(pairs) for number, name in of_rank.items()}
    param_groups = [
        {**group, "params": [known[number] for number in numbers]}
        for group, numbers in zip(state["param_groups"], groups.whole, strict=True)
    ]
    return {**state, "param_groups": param_groups}


def load_named_optimizer_state(
    module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> None:
    """What ``set_optimizer_state_dict`` does with what ``named_optimizer_state`` gave, into which
    a checkpoint was loaded. Collective.

    Raises:
        TensorOptError: on every rank; it is of other groups.
    """
    if GroupsOfStages.of(optimizer) is None:
        _dcp_states().set_optimizer_state_dict(module, optimizer, optim_state_dict={**state})
        return
    names = _names_of(module, optimizer)
    on_all_ranks(lambda: _check_groups(names, state["param_groups"]))
    places = {name: place for place, name in enumerate(n for group in names for n in group)}
    states = {places[n]: state["state"][n] for n in places if n in state["state"]}
    param_groups = [
        {**group, "params": [places[name] for name in own]}
        for group, own in zip(state["param_groups"], names, strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": param_groups})


def _check_groups(names: list[list[str]], groups: list[Mapping[str, Any]]) -> None:
    known = [set(group["params"]) for group in groups]
    if len(known) != len(names) or any(
        not whole.issuperset(own) for own, whole in zip(names, known, strict=True)
    ):
        raise TensorOptError(
            f"the checkpoint has an optimizer of groups of {[len(group) for group in known]} "
            f"parameters, this one has {[len(group) for group in names]} of its stage, and they "
            "are not of those; make the same groups as the optimizer that was saved"
        )


def _names_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """The names of the optimizer's parameters, by group."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def _dcp_states() -> Any:
    """Importing it takes long, and few jobs need it."""
    from torch.distributed.checkpoint import state_dict

    return state_dict
