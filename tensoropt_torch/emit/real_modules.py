"""Modules that compute, made of the stand-ins of a parallel module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.parametrized import original_class
from tensoropt_torch.emit.stand_ins import had_hooks
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing

_INTERNAL = frozenset(vars(nn.Module()))


@doing("whole_model")
def whole_model(parallel: ParallelModule) -> nn.Module:
    """A copy of the model as it was before ``parallelize``, with the weights of now, whole on
    each rank's device: for what a graph does not do, as ``generate`` of Hugging Face. Collective.

    ::

        model = tensoropt_torch.whole_model(parallel)
        tokens = model.generate(**prompt)
        del model  # and its memory

    Its parameters require no gradients, and what is changed in it does not come back. In
    training or evaluation as ``parallel`` is.

    Raises:
        TensorOptError: on every rank; a module of the model had forward or backward hooks
            before ``parallelize``, or an attribute of it refers to modules of the model.
    """
    root = parallel.original
    on_all_ranks(lambda: _check(root))
    wholes: dict[int, torch.Tensor] = {}  # tied weights stay tied
    made: dict[int, nn.Module] = {}
    return _real(root, wholes, made)


def _check(root: nn.Module) -> None:
    for path, module in root.named_modules():
        what = "has hooks" if had_hooks(module) else _refers(module)
        if what:
            raise TensorOptError(
                f"module '{path or type(root).__name__}' of the model {what}, which a copy would "
                "not have: save full_state_dict(parallel), and load it into a model that you build"
            )


def _refers(module: nn.Module) -> str | None:
    for name, value in vars(module).items():
        if name in _INTERNAL:
            continue
        for leaf in pytree.tree_leaves(value):
            if isinstance(getattr(leaf, "__self__", leaf), nn.Module):
                return f"keeps a module or a method of one in its attribute '{name}'"
    return None


def _real(
    stand_in: nn.Module, wholes: dict[int, torch.Tensor], made: dict[int, nn.Module]
) -> nn.Module:
    if id(stand_in) in made:
        return made[id(stand_in)]
    real: nn.Module = object.__new__(original_class(stand_in))
    made[id(stand_in)] = real
    attributes: dict[str, Any] = dict(vars(stand_in))
    attributes["_parameters"] = {
        name: None if p is None else _whole(p, wholes) for name, p in stand_in._parameters.items()
    }
    attributes["_buffers"] = {
        name: None if b is None else _whole(b, wholes) for name, b in stand_in._buffers.items()
    }
    attributes["_modules"] = {
        name: None if child is None else _real(child, wholes, made)
        for name, child in stand_in._modules.items()
    }
    vars(real).update(attributes)
    return real


def _whole(tensor: torch.Tensor, wholes: dict[int, torch.Tensor]) -> torch.Tensor:
    if id(tensor) not in wholes:
        value = tensor.detach()
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        copied = whole.clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        wholes[id(tensor)] = nn.Parameter(copied, requires_grad=False) if is_parameter else copied
    return wholes[id(tensor)]
