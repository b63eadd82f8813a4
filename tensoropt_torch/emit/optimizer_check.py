"""Notices optimizers that were made with the model's parameters, which no longer train."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from tensoropt_torch.errors import TensorOptError


def refuse_optimizers_of(model: nn.Module, parallel: nn.Module) -> None:
    """As long as ``parallel`` is there, raises TensorOptError in steps of optimizers that have
    parameters of ``model`` and no gradient: it is ``parallel`` that gets them."""
    originals = WeakTensorKeyDictionary()
    for parameter in model.parameters():
        originals[parameter] = None

    def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if all(p.grad is None for p in parameters) and any(p in originals for p in parameters):
            raise TensorOptError(
                "this optimizer has the parameters of the model before it was parallel, which get "
                "no gradients: nothing would be trained; make the optimizer after parallelize, "
                "with parallel.parameters()"
            )

    handle = register_optimizer_step_pre_hook(check)
    weakref.finalize(parallel, handle.remove)
