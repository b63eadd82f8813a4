"""A run kept in one file of ``torch.save``, as the program of one process writes it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.runtime.stage_groups import refuse_stages


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
        refuse_stages(
            leaves,
            "save",
            "give it full_state_dict(parallel) and full_optimizer_state_dict(optimizer), on all "
            "ranks",
        )

    on_all_ranks(check)
    keep = is_first()
    gathered: dict[int, Any] = {}

    def whole(tensor: torch.Tensor) -> Any:
        if id(tensor) not in gathered:
            gathered[id(tensor)] = whole_tensor(tensor, keep)
        return gathered[id(tensor)]

    made = pytree.tree_map_only(torch.Tensor, whole, state)
    on_all_ranks(lambda: torch.save(made, path) if keep else None)
