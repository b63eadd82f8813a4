"""Operators that write numbers for a ``DTensor`` as a whole: every rank makes those of the whole
tensor, as one process does, and takes its part. Collective where numbers are drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.runtime.agreement import from_first_rank
from tensoropt_torch.runtime.stage_groups import is_mesh_of_stage
from tensoropt_torch.values.parts import take_part
from tensoropt_torch.values.placements import dtensor_of


def write_whole(op: Any, own: DTensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DTensor:
    """What the operator gives. ``own`` is its first argument or its ``out``, in whose layout the
    result is, and into which it writes if its name says so.

    Raises:
        TensorOptError: it is a parameter of a stage.
    """
    if is_mesh_of_stage(own.device_mesh):
        raise TensorOptError(
            f"{op.name()} draws random numbers for a parameter of a stage, which would be others "
            "than those of one process: a rank does not draw those of other stages; fill the "
            "parameters of the model before parallelize, or write what one process draws: "
            "p.copy_(whole)"
        )
    shape, stride, local = own.shape, own.stride(), own._local_tensor
    twin = torch.empty_strided(shape, stride, dtype=own.dtype, device=local.device)
    if not op._schema.is_mutable:
        twin = own.full_tensor()

    def whole(value: DTensor) -> torch.Tensor:
        return twin if value is own else value.full_tensor()

    args, kwargs = pytree.tree_map_only(DTensor, whole, (args, dict(kwargs)))
    generator = kwargs.get("generator") or _default_generator(local.device)
    result = _drawn(op, args, kwargs, generator)
    part = take_part(result, own.device_mesh, own.placements)
    if op._schema.is_mutable:
        local.copy_(part)
        return own
    return dtensor_of(part.contiguous(), own.device_mesh, own.placements, result)


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _drawn(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator
) -> torch.Tensor:
    """With the generator of rank 0. That of a rank which was in another state stays there."""
    own = generator.get_state()
    first = from_first_rank(generator.get_state)
    alike = torch.equal(own, first)
    if not alike:
        generator.set_state(first)
    try:
        result: torch.Tensor = op(*args, **kwargs)
    finally:
        if not alike:
            generator.set_state(own)
    return result
