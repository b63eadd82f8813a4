"""What a parallel module does with the optimizers of the program, when they make a step."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from tensoropt_torch.emit.local_step import is_element_wise, keep_innermost, local_step
from tensoropt_torch.errors import TensorOptError


def watch_optimizers(model: nn.Module, parallel: nn.Module) -> None:
    """As long as ``parallel`` is there: optimizers of its parameters that update each element
    by itself make local steps; and those that were made with parameters of ``model``, which no
    longer get gradients, raise TensorOptError."""
    originals, own = _keys(model), _keys(parallel)
    known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if all(p.grad is None for p in parameters) and any(p in originals for p in parameters):
            raise TensorOptError(
                "this optimizer has the parameters of the model before it was parallel, which get "
                "no gradients: nothing would be trained; make the optimizer after parallelize, "
                "with parallel.parameters()"
            )
        is_new = optimizer not in known and is_element_wise(optimizer)
        if is_new and any(p in own for p in parameters):
            known.add(optimizer)
            local_step(optimizer)
        keep_innermost(optimizer)

    handle = register_optimizer_step_pre_hook(before_step)
    weakref.finalize(parallel, handle.remove)


def _keys(module: nn.Module) -> WeakTensorKeyDictionary:
    keys = WeakTensorKeyDictionary()
    for parameter in module.parameters():
        keys[parameter] = None
    return keys
