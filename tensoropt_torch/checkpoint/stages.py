"""The states of a model in stages and of its optimizers, put together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.staged import StagedModule, groups_of
from tensoropt_torch.runtime.agreement import gather, on_all_ranks
from tensoropt_torch.runtime.stage_groups import StageGroups, place_of

_Values = Mapping[Any, Any]


def state_of_stages(parallel: StagedModule) -> dict[str, Any]:
    """``full_state_dict`` of a module in stages; names are in the order of the stages."""
    found: dict[Any, Any] = _together(parallel.state_dict(keep_vars=True), groups_of(parallel))
    return found if is_first() else {}


def _together(own: _Values, groups: StageGroups) -> dict[Hashable, Any]:
    """What the stages have by these keys, on rank 0: every stage puts its tensors together, and
    its first rank sends them, one by one; of what several have that of the first. Collective."""
    keeps = groups.rank == 0
    tables = gather([(key, v.dtype, tuple(v.shape)) for key, v in own.items() if _is_tensor(v)])
    others = gather({key: value for key, value in own.items() if not _is_tensor(value)})
    device = torch.device(groups.mesh.device_type)
    state: dict[Hashable, Any] = {}
    sent: set[Hashable] = set()  # by the first stage that has it, as all ranks know
    for stage in range(groups.stages):
        sender = groups.global_rank(stage, 0)
        for key, dtype, shape in tables[sender]:
            mine = whole_tensor(own[key], keeps) if groups.stage == stage else None
            is_known = key in sent
            sent.add(key)
            if not is_known and (is_first() or dist.get_rank() == sender):
                state[key] = _moved(mine, sender, dtype, shape, device)
        state |= {key: value for key, value in others[sender].items() if key not in state}
    return state


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _moved(
    tensor: torch.Tensor | None,
    sender: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
) -> torch.Tensor | None:
    """The tensor on rank 0, in the memory of the CPU."""
    if sender == 0:
        return tensor
    if dist.get_rank() == sender:
        assert tensor is not None
        dist.send(tensor.to(device).contiguous(), 0)
        return None
    received = torch.empty(shape, dtype=dtype, device=device)
    dist.recv(received, sender)
    return received.cpu()


@dataclass(frozen=True)
class GroupsOfStages:
    """The groups of parameters of an optimizer of a stage, and those that one of the whole model
    would have.

    Attributes:
        own: the numbers of this rank's parameters among those of the model, by group.
        whole: of all stages.
    """

    own: tuple[tuple[int, ...], ...]
    whole: tuple[tuple[int, ...], ...]
    groups: StageGroups

    @staticmethod
    def of(optimizer: torch.optim.Optimizer) -> GroupsOfStages | None:
        """None: its parameters are of no stages. Collective if they are.

        Raises:
            TensorOptError: on every rank; the groups are not those of one process.
        """
        given = [[place_of(p) for p in group["params"]] for group in optimizer.param_groups]
        known = next((place for group in given for place in group if place is not None), None)
        if known is None:
            return None

        def numbers() -> tuple[tuple[int, ...], ...]:
            found = tuple(tuple(-1 if p is None else p.number for p in group) for group in given)
            for group in found:
                if -1 in group or list(group) != sorted(group):
                    raise TensorOptError(
                        "the optimizer has parameters of a model in stages in another order than "
                        "the model, or with others; make it with parallel.parameters(), or groups "
                        "of these in their order"
                    )
            return found

        own = on_all_ranks(numbers)
        ranks = gather(own)

        def check() -> None:
            counts = [len(groups) for groups in ranks]
            if len(set(counts)) > 1:
                raise TensorOptError(
                    f"the optimizers of the ranks have {counts} groups of parameters; make as many "
                    "on all ranks, those without parameters of a stage empty"
                )

        on_all_ranks(check)
        whole = tuple(tuple(sorted(set().union(*same))) for same in zip(*ranks, strict=True))
        return GroupsOfStages(own, whole, known.groups)

    @property
    def keys(self) -> dict[int, int]:
        """The keys that parameters have in the state of one process, by number."""
        numbers = [number for group in self.whole for number in group]
        return {number: key for key, number in enumerate(numbers)}

    def own_states(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What this rank's optimizer has of the state of one process.

        Raises:
            TensorOptError: that is of other groups.
        """
        counts = [len(group["params"]) for group in state["param_groups"]]
        if counts != [len(group) for group in self.whole]:
            raise TensorOptError(
                f"the state is of groups of {counts} parameters, the optimizer has "
                f"{[len(group) for group in self.whole]} in all stages together; make the same "
                "groups as the optimizer that the state is of"
            )
        by_place = [key for group in state["param_groups"] for key in group["params"]]
        own = [number for group in self.own for number in group]
        keys = {number: by_place[key] for number, key in self.keys.items()}
        places = {number: place for place, number in enumerate(own)}
        states = {places[n]: state["state"][keys[n]] for n in own if keys[n] in state["state"]}
        groups = [
            {**group, "params": [places[number] for number in numbers]}
            for group, numbers in zip(state["param_groups"], self.own, strict=True)
        ]
        return {**state, "state": states, "param_groups": groups}


def states_of_stages(optimizer: torch.optim.Optimizer, groups: GroupsOfStages) -> dict[str, Any]:
    """``full_optimizer_state_dict`` of one of a stage."""
    state = optimizer.state_dict()
    numbers: Sequence[int] = [number for group in groups.own for number in group]
    keys = [key for group in state["param_groups"] for key in group["params"]]
    own = {
        (groups.keys[number], name): value
        for number, key in zip(numbers, keys, strict=True)
        for name, value in state["state"].get(key, {}).items()
    }
    found: dict[Any, Any] = _together(own, groups.groups)
    if not is_first():
        return {}
    states: dict[int, dict[str, Any]] = {key: {} for key, _ in sorted(found)}
    for (key, name), value in found.items():
        states[key][name] = value
    param_groups = [
        {**group, "params": [groups.keys[number] for number in whole]}
        for group, whole in zip(state["param_groups"], groups.whole, strict=True)
    ]
    return {**state, "state": states, "param_groups": param_groups}
