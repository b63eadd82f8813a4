"""Tensor layouts of plans as ``DTensor`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from tensoropt_torch.frontend import Blocks


def placements_of(
    layout: str, blocks: Blocks | None = None, mesh: Sequence[int] = ()
) -> tuple[Placement, ...]:
    """Those of a tensor layout, ``S0,P,R``, on the base mesh; one of no axes has one.

    Given ``blocks`` the layout is that of the parameter as the graph sees it, on a mesh with
    axes of these sizes, and the placements are those of the parameter itself: a part
    of each block is a ``_StridedShard``, whose ``split_factor`` is the number of blocks.
    """
    found = tuple(map(_placement, (layout or "R").split(",")))
    return found if blocks is None else _joined(found, blocks, mesh)


def _placement(part: str) -> Placement:
    if part[0] == "S":
        return Shard(int(part[1:]))
    return Partial() if part == "P" else Replicate()


def _joined(
    placements: Sequence[Placement], blocks: Blocks, mesh: Sequence[int]
) -> tuple[Placement, ...]:
    result: list[Placement] = []
    count = blocks.count  # of those that the axes so far have left
    for axis, placement in enumerate(placements):
        if not isinstance(placement, Shard):
            result.append(placement)
        elif placement.dim == blocks.dim + 1 and count > 1:
            result.append(_StridedShard(blocks.dim, split_factor=count))
        else:
            result.append(Shard(placement.dim - (placement.dim > blocks.dim)))
            if placement.dim == blocks.dim:
                count //= mesh[axis]
    return tuple(result)


def is_strided(placements: Sequence[Placement]) -> bool:
    """Whether parts are made of parts of blocks."""
    return any(isinstance(placement, _StridedShard) for placement in placements)


def dtensor_of(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], whole: torch.Tensor
) -> DTensor:
    """The tensor of the shape of ``whole`` of which the rank has ``local``. No gradient flows
    through it."""
    shape = whole.shape
    stride = torch.empty(shape, device="meta").stride()
    if not is_strided(placements):
        return DTensor.from_local(
            local.detach(), mesh, placements, run_check=False, shape=shape, stride=stride
        )
    # With the flag at its default PyTorch takes strided placements for an order of axes where
    # the numbers allow it, and gathers parts in a wrong order.
    spec: Any = DTensorSpec(
        mesh,
        tuple(placements),
        tensor_meta=TensorMeta(shape, stride, local.dtype),
        use_strided_shard_as_shard_order=False,
    )
    return DTensor(local.detach(), spec, requires_grad=False)  # type: ignore[no-untyped-call]


def relay(
    tensor: DTensor, local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> None:
    """The same object gets another layout, of which the rank has ``local``: whoever has the
    parameter, as optimizers do, goes on with it."""
    spec = dtensor_of(local, mesh, placements, tensor)._spec
    tensor._local_tensor, tensor._spec = local.detach(), spec
