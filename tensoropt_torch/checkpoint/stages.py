"""The states of a model in stages and of its optimizers, put together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.staged import StagedModule, groups_of
from tensoropt_torch.runtime.agreement import gather, on_all_ranks
from tensoropt_torch.runtime.stage_groups import (
    StageGroups,
    groups_of_meshes,
    is_mesh_of_stage,
    place_of,
)

_Values = Mapping[Any, Any]


def state_of_stages(parallel: StagedModule) -> dict[str, Any]:
    """``full_state_dict`` of a module in stages; names are in the order of the stages."""
    found: dict[Any, Any] = _together(parallel.state_dict(keep_vars=True), groups_of(parallel))
    return found if is_first() else {}


def merged_state(state: Mapping[str, Any], groups: StageGroups) -> dict[str, Any]:
    """What one process would have of nested dicts that the stages have with what is theirs, on
    rank 0. Collective.

    Raises:
        TensorOptError: on every rank; tensors of a stage are in something that is not by names.
    """
    own = on_all_ranks(lambda: dict(_leaves(state, ())))
    found: dict[Any, Any] = _together(own, groups)
    whole: dict[str, Any] = {}
    for path, value in found.items():
        inside = whole
        for name in path[:-1]:
            inside = inside.setdefault(name, {})
        if isinstance(value, Mapping) and not value:  # as all but rank 0 have of what is whole
            inside.setdefault(path[-1], {})
        else:
            inside[path[-1]] = value
    return whole


def _leaves(state: Any, path: tuple[Hashable, ...]) -> Iterator[tuple[tuple[Hashable, ...], Any]]:
    if isinstance(state, Mapping) and state:
        is_named = all(isinstance(name, str) for name in state)
        if is_named or not _has_of_stage(state):
            for name, value in state.items():
                yield from _leaves(value, (*path, name))
            return
    if not (isinstance(state, torch.Tensor) and path) and _has_of_stage(state):
        raise TensorOptError(
            f"save is given parts of a stage that are not by the names of the model, in "
            f"{'.'.join(map(str, path)) or 'the state'}, as an optimizer has them; give it "
            "full_optimizer_state_dict(optimizer), on all ranks"
        )
    if path:
        yield path, state


def groups_of_state(state: Any) -> StageGroups | None:
    """Those of the stages of which a part of a tensor is in it, on some rank. Collective.

    Raises:
        TensorOptError: on every rank; there are parts of stages of several numbers.
    """
    return groups_of_meshes(_meshes(state))


def _has_of_stage(state: Any) -> bool:
    """Whether a stage's part of a tensor is in it."""
    return any(map(is_mesh_of_stage, _meshes(state)))


def _meshes(state: Any) -> Iterator[DeviceMesh]:
    for leaf in pytree.tree_leaves(state):
        mesh = getattr(leaf, "device_mesh", None)
        if isinstance(mesh, DeviceMesh):
            yield mesh


def _together(own: _Values, groups: StageGroups) -> dict[Hashable, Any]:
    """What the stages have by these keys, on rank 0: every stage puts its tensors together, and
    its first rank sends them, one by one; of what several have that of the first. Names of one
    tensor are so here, too. Collective."""
    keeps = groups.rank == 0
    first: dict[int, Hashable] = {}
    own_tensors = [(key, value) for key, value in own.items() if _is_tensor(value)]
    tables = gather(
        [
            (key, v.dtype, tuple(v.shape), first.setdefault(id(v), key), isinstance(v, DTensor))
            for key, v in own_tensors
        ]
    )
    others = gather({key: value for key, value in own.items() if not _is_tensor(value)})
    device = torch.device(groups.mesh.device_type)
    state: dict[Hashable, Any] = {}
    sent: set[Hashable] = set()  # by the first stage that has it, as all ranks know
    for stage in range(groups.stages):
        sender = groups.global_rank(stage, 0)
        for key, dtype, shape, same, in_parts in tables[sender]:
            is_known = key in sent
            sent.add(key)
            if is_known:
                continue
            if same in sent and same != key:
                if is_first():
                    state[key] = state[same]
                continue
            # What is whole others of the stage need not have, as states that rank 0 has for all.
            has_part = groups.stage == stage if in_parts else dist.get_rank() == sender
            mine = whole_tensor(own[key], keeps) if has_part else None
            if is_first() or dist.get_rank() == sender:
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
