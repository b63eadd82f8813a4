"""Weights that leave a job whole: as a plain state dict, or as files of Hugging Face."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from tensoropt_torch.checkpoint.stages import state_of_stages
from tensoropt_torch.checkpoint.tensors import is_first, whole_tensor
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.staged import StagedModule
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing


@doing("full_state_dict")
def full_state_dict(parallel: nn.Module) -> dict[str, Any]:
    """What ``state_dict()`` of the original model would be, on rank 0: whole tensors in
    the memory of the CPU; an empty dict on other ranks. Collective.

    Names of one parameter are names of one tensor. Tensors are gathered one by one, so that
    a device holds its parts and one whole tensor.
    """
    if isinstance(parallel, StagedModule):
        return state_of_stages(parallel)
    keep = is_first()
    gathered: dict[int, Any] = {}
    state: dict[str, Any] = {}
    for name, value in parallel.state_dict(keep_vars=True).items():
        if id(value) not in gathered:
            gathered[id(value)] = whole_tensor(value, keep)
        state[name] = gathered[id(value)]
    return state if keep else {}


@doing("save_pretrained")
def save_pretrained(
    parallel: ParallelModule,
    folder: str | os.PathLike[str],
    model: nn.Module | None = None,
    **options: Any,
) -> None:
    """Writes what ``save_pretrained`` of the original model writes, with the weights of
    ``parallel``, so that ``from_pretrained(folder)`` gives them. Collective; rank 0 writes.

    Args:
        folder: is made if it is not there.
        model: whose class and configuration are written instead of the original's.
        options: of the original's own ``save_pretrained``, e.g. ``max_shard_size="5GB"``.

    Raises:
        TensorOptError: on every rank; the original has no ``save_pretrained``, or the
            folder is a file. What else goes wrong on rank 0 is raised on all.
    """
    write = on_all_ranks(lambda: _writer_of(parallel, model, folder))
    state = full_state_dict(parallel)

    def write_first() -> None:
        if is_first():
            write(folder, state_dict=state, **options)

    on_all_ranks(write_first)


def _writer_of(
    parallel: ParallelModule, model: nn.Module | None, folder: str | os.PathLike[str]
) -> Any:
    original = parallel.original if model is None else model
    write = getattr(original, "save_pretrained", None)
    if write is None:
        raise TensorOptError(
            f"{type(original).__name__} has no save_pretrained, as models of Hugging Face have; "
            "write full_state_dict(parallel) with torch.save on rank 0"
        )
    if os.path.isfile(folder):
        raise TensorOptError(f"'{os.fspath(folder)}' is a file; give a folder to save to")
    return write
