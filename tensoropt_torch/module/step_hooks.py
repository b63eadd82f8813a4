"""What a parallel module does with the optimizers of the program, when they make a step."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.module.parallel_module import ParallelModule, storage_of
from tensoropt_torch.steps.first_states import check_left_out, complete_state_dicts
from tensoropt_torch.steps.local_step import LocalSteps, is_element_wise
from tensoropt_torch.steps.replaced import ReplacedParameters
from tensoropt_torch.steps.whole_step import WholeSteps, is_parameter_wise


def watch_optimizers(model: nn.Module, parallel: ParallelModule) -> None:
    """As long as ``parallel`` is there: optimizers of its parameters that update each element
    by itself make local steps, those that need whole matrices whole ones, and the state dicts of
    all of them are complete; those that were made with parameters of ``model``, which no longer
    get gradients, raise TensorOptError."""
    originals = WeakTensorKeyDictionary()
    for parameter in model.parameters():
        originals[parameter] = None
    # Weak references to its parameters would forbid to move them.
    module = weakref.ref(parallel)
    looked_at: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()

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
        own = module()
        if own is not None and not storage_of(own).is_used:
            own = None
        if looked_at.get(optimizer) != len(parameters):  # groups may be added
            looked_at[optimizer] = len(parameters)
            if own is not None and _has_any_of(own, parameters):
                storage_of(own).optimizers[optimizer] = None
                _adapt(optimizer)
        ReplacedParameters.keep_innermost(optimizer)
        if own is not None:
            check_left_out(optimizer, own)
            if optimizer in storage_of(own).optimizers:
                storage_of(own).steps += 1

    handle = register_optimizer_step_pre_hook(before_step)
    weakref.finalize(parallel, handle.remove)


def _adapt(optimizer: torch.optim.Optimizer) -> None:
    complete_state_dicts(optimizer)  # before states become those of wholes again
    if is_element_wise(optimizer):
        LocalSteps.attach(optimizer)
    elif is_parameter_wise(optimizer):
        WholeSteps.attach(optimizer)


def _has_any_of(module: nn.Module, parameters: list[nn.Parameter]) -> bool:
    own = {id(parameter) for parameter in module.parameters()}
    return any(id(parameter) in own for parameter in parameters)
