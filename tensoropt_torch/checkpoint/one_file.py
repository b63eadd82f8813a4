"""A run kept in one file of ``torch.save``, as the program of one process writes it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.checkpoint.stages import groups_of_state, merged_state
from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing


@doing("save")
def save(state: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save`` of what one process would have: tensors of ``state``, in any containers,
    are whole and on the CPU. Collective; rank 0 writes, and all go on when it is done.

    The state dicts of a parallel module and of its optimizer become those of the model, so
    that ``torch.load`` and ``load_state_dict`` of one process read them. Tensors are gathered
    one by one; rank 0 needs memory for all of them.

    In stages each rank gives the state that it has, in dicts with the names of the model: those of
    all stages together are written. What is not by names, as an optimizer's, has to be whole
    (``full_optimizer_state_dict``).

    Raises:
        TensorOptError: on every rank; ``path`` is none, or something of a stage is not by names.
        Whatever keeps rank 0 from writing, on every rank.
    """

    def check() -> None:
        if not isinstance(path, str | os.PathLike):
            raise TensorOptError(
                f"path is a {type(path).__name__}; give a path, after the state: save(state, path)"
            )

    on_all_ranks(check)
    keep = is_first()
    groups = groups_of_state(state)
    if groups is not None:
        merged = merged_state(state, groups)
        on_all_ranks(lambda: torch.save(merged, path) if keep else None)
        return
    gathered: dict[int, Any] = {}

    def whole(tensor: torch.Tensor) -> Any:
        if id(tensor) not in gathered:
            gathered[id(tensor)] = whole_tensor(tensor, keep)
        return gathered[id(tensor)]

    made = pytree.tree_map_only(torch.Tensor, whole, state)
    on_all_ranks(lambda: torch.save(made, path) if keep else None)
