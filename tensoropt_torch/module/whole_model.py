"""A copy of the model of a parallel module, with whole weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule
from tensoropt_torch.module.real_modules import real_module
from tensoropt_torch.module.stand_ins import had_hooks
from tensoropt_torch.runtime.agreement import on_all_ranks
from tensoropt_torch.runtime.lost_ranks import doing
from tensoropt_torch.runtime.stage_groups import refuse_stages

_OF_STAGES = "load full_state_dict(parallel), which rank 0 gets, into a model that you build"
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
    on_all_ranks(lambda: refuse_stages(root.parameters(), "whole_model", _OF_STAGES))
    on_all_ranks(lambda: _check(root))
    whole = _Whole()
    return real_module(root, whole, whole)


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


class _Whole:
    """Whole copies of tensors; tied weights stay tied."""

    def __init__(self) -> None:
        self._made: dict[int, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in self._made:
            self._made[id(tensor)] = _copied(tensor)
        return self._made[id(tensor)]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach()
    whole = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(whole, requires_grad=False) if is_parameter else whole
