"""What PyTorch computes of all gradients at once, where a rank has those of one stage."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tensoropt_torch.runtime.lost_ranks import waiting
from tensoropt_torch.runtime.stage_groups import is_mesh_of_stage, refuse_stages, stage_groups
from tensoropt_torch.steps.clipping import norm_on_all_ranks

_WATCHED = "_tensoropt_watched"
_steps: Any = None  # the hook of steps, of which there is one


def watch_norms_of_stages() -> None:
    """From now on, in this process, norms of all gradients, and whether ``GradScaler`` finds one
    that is infinite, are of all stages; optimizers that look at all gradients at once raise
    TensorOptError. Of gradients of a stage they are collective, over all ranks of the job. Where
    a stage has no gradients none are clipped by value, which PyTorch refuses."""
    global _steps
    if _steps is None:
        _steps = register_optimizer_step_pre_hook(_before_step)
    clipping: Any = torch.nn.utils.clip_grad
    for module, name in ((clipping, "_get_total_norm"), (torch.nn.utils, "get_total_norm")):
        _watch(module, name, _of_all_stages)
    _watch(clipping, "_group_tensors_by_device_and_dtype", _of_some)
    _watch(torch.amp.GradScaler, "_unscale_grads_", _agreeing)


def _watch(owner: Any, name: str, wrap: Any) -> None:
    """Wraps a function of PyTorch, once, if it has it."""
    found = getattr(owner, name, None)
    if found is not None and not hasattr(found, _WATCHED):
        wrapped = wrap(found)
        setattr(wrapped, _WATCHED, True)
        setattr(owner, name, wrapped)


def _of_all_stages(total_norm: Any) -> Any:
    @functools.wraps(total_norm)
    def of_all(
        tensors: Any,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        mesh = next((mesh for tensor in given if (mesh := _mesh_of_stage(tensor))), None)
        like = given
        if not given:
            # A stage in which nothing has a gradient: others wait for what it has.
            groups = stage_groups()
            mesh = None if groups is None else groups.mesh
            like = [] if mesh is None else [_nothing(mesh)]
        if mesh is None:
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        with torch.no_grad():
            norm = norm_on_all_ranks(
                [_summed(tensor) for tensor in given],
                float(norm_type),
                error_if_nonfinite,
                foreach,
                like=like,
            )
        return DTensor.from_local(norm, mesh, [Replicate()] * mesh.ndim, run_check=False)

    return of_all


def _of_some(grouped: Any) -> Any:
    @functools.wraps(grouped)
    def of_some(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if stage_groups() is not None and not any(tensors):
            return {}
        return grouped(tensors, *args, **kwargs)

    return of_some


def _nothing(mesh: DeviceMesh) -> DTensor:
    empty = torch.empty(0, dtype=torch.float64, device=mesh.device_type)
    return DTensor.from_local(empty, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _summed(tensor: torch.Tensor) -> torch.Tensor:
    """Without pending sums, as ``no_sync`` leaves them."""
    if not isinstance(tensor, DTensor) or not any(p.is_partial() for p in tensor.placements):
        return tensor
    placements = [Replicate() if p.is_partial() else p for p in tensor.placements]
    return tensor.redistribute(placements=placements)


def _mesh_of_stage(tensor: object) -> DeviceMesh | None:
    mesh = getattr(tensor, "device_mesh", None)
    return mesh if isinstance(mesh, DeviceMesh) and is_mesh_of_stage(mesh) else None


def _agreeing(unscale: Any) -> Any:
    @functools.wraps(unscale)
    def on_all(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        found: dict[torch.device, torch.Tensor] = unscale(scaler, optimizer, *args, **kwargs)
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        staged = next((p for p in parameters if _mesh_of_stage(p)), None)
        if staged is None:
            return found
        # A rank whose stage has no gradient hears of the others'.
        most = torch.zeros((), device=staged.device)
        for flag in found.values():
            most = torch.maximum(most, flag.reshape(()).to(most))
        with waiting():
            dist.all_reduce(most, dist.ReduceOp.MAX)
        if not found:
            found[staged.device] = most
        for flag in found.values():
            flag.copy_(most.reshape(flag.shape))
        return found

    return on_all


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        refuse_stages(parameters, "LBFGS", "take an optimizer that updates parameter by parameter")
