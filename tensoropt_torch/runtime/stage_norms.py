"""What PyTorch computes of all gradients at once, where a rank has those of one stage."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensoropt_torch.runtime.stage_groups import refuse_stages

_UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default
_WATCHED = "_tensoropt_watched"
_steps: Any = None  # the hook of steps, of which there is one


def watch_norms_of_stages() -> None:
    """From now on, in this process, norms of all gradients of one stage, ``GradScaler`` and
    optimizers that look at all gradients at once raise TensorOptError."""
    global _steps
    if _steps is None:
        _steps = register_optimizer_step_pre_hook(_before_step)
    clipping: Any = torch.nn.utils.clip_grad
    for module, name in ((clipping, "_get_total_norm"), (torch.nn.utils, "get_total_norm")):
        total_norm = getattr(module, name, None)
        if total_norm is not None and not hasattr(total_norm, _WATCHED):
            setattr(module, name, _watched(total_norm))
    dispatcher = getattr(DTensor, "_op_dispatcher", None)
    handlers: Any = getattr(dispatcher, "_custom_op_handlers", {})
    if _UNSCALE in handlers and not hasattr(handlers[_UNSCALE], _WATCHED):
        handlers[_UNSCALE] = _refusing(handlers[_UNSCALE])


def _watched(total_norm: Any) -> Any:
    @functools.wraps(total_norm)
    def of_all(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensors, torch.Tensor):
            tensors = list(tensors)
        given: Iterable[object] = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        refuse_stages(
            given,
            "torch.nn.utils.clip_grad_norm_ or get_total_norm",
            "call tensoropt_torch.clip_grad_norm_, on all ranks",
        )
        return total_norm(tensors, *args, **kwargs)

    setattr(of_all, _WATCHED, True)
    return of_all


def _refusing(handler: Any) -> Any:
    def unscale(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        refuse_stages(
            args[0],
            "GradScaler",
            "train in bfloat16, which needs none, or plan without stages",
        )
        return handler(operator, args, kwargs)

    setattr(unscale, _WATCHED, True)
    return unscale


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        refuse_stages(parameters, "LBFGS", "take an optimizer that updates parameter by parameter")
