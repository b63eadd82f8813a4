"""Checkpoints of Lightning for modules in stages, of which each rank has the parts of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from tensoropt_torch.checkpoint import full_state_dict, load_optimizer
from tensoropt_torch.checkpoint.named_states import (
    load_named_optimizer_state,
    named_optimizer_state,
)
from tensoropt_torch.checkpoint.tensors import is_first
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module import ParallelModule
from tensoropt_torch.module.staged import StagedModule
from tensoropt_torch.runtime.agreement import on_all_ranks

META = "meta.pt"  # in a folder of Lightning: what is no tensor

Parts = Mapping[str, ParallelModule]  # by name


def are_stages(parts: Parts) -> bool:
    """Whether one of them is in stages."""
    return any(isinstance(parallel, StagedModule) for parallel in parts.values())


def move_outside(module: nn.Module, device: torch.device) -> None:
    """Moves what is in no stage, such as metrics: parameters of stages are known as the objects
    that they are, which ``to`` exchanges where they are a module's own."""
    if isinstance(module, ParallelModule):
        return
    if not any(isinstance(parameter, DTensor) for parameter in module.parameters()):
        module.to(device)
        return
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device)
    for child in module.children():
        move_outside(child, device)


def whole_state(module: LightningModule, parts: Parts) -> dict[str, Any]:
    """The state dict of the module on rank 0, nothing on others. Collective."""
    found: dict[str, Any] = {}
    for name, parallel in parts.items():
        prefix = _prefix(name)
        found |= {f"{prefix}{key}": value for key, value in full_state_dict(parallel).items()}
    if not is_first():
        return {}
    inside = tuple(map(_prefix, parts))
    rest = module.state_dict().items()
    return found | {key: value for key, value in rest if not key.startswith(inside)}


def load_checkpoint(
    path: Path,
    module: LightningModule,
    parts: Parts,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    strict: bool,
    weights_only: bool | None,
) -> dict[str, Any]:
    """Takes the states that a folder or a file of Lightning has, written under any plan or
    without one; returns the rest of it. Collective.

    Raises:
        TensorOptError: on every rank; there is no such checkpoint, or it is of something else.
    """
    on_all_ranks(lambda: _check_path(path))
    if path.is_dir():
        state = {"state_dict": get_model_state_dict(module)}
        load(state, checkpoint_id=path)
        module.load_state_dict(state["state_dict"], strict=strict)
        for number, optimizer in enumerate(optimizers):
            key = f"optimizer_{number}"
            states = {key: named_optimizer_state(module, optimizer)}
            load(states, checkpoint_id=path)
            load_named_optimizer_state(module, optimizer, states[key])
        rest: dict[str, Any] = torch.load(path / META, weights_only=weights_only)
        return rest
    whole: dict[str, Any] = torch.load(
        path, mmap=True, map_location="cpu", weights_only=weights_only
    )
    _load_whole(module, parts, whole.pop("state_dict"), strict)
    for optimizer, of_optimizer in zip(optimizers, whole["optimizer_states"], strict=True):
        load_optimizer(optimizer, of_optimizer)
    return whole


def _load_whole(
    module: LightningModule, parts: Parts, state: Mapping[str, Any], strict: bool
) -> None:
    rest = dict(state)
    for name, parallel in parts.items():
        prefix = _prefix(name)
        own = {key.removeprefix(prefix): rest.pop(key) for key in state if key.startswith(prefix)}
        parallel.load_state_dict(own, strict=strict)
    if rest:
        module.load_state_dict(rest, strict=False)


def _check_path(path: Path) -> None:
    if not path.is_file() and not (path / META).is_file():
        raise TensorOptError(
            f"'{path}' is no checkpoint of Lightning: neither a file nor a folder with '{META}'"
        )


def _prefix(name: str) -> str:
    return f"{name}." if name else ""
