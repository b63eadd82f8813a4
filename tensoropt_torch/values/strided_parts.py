"""What PyTorch does not know of ``DTensor``s with strided placements.

``torch.distributed.checkpoint`` takes the part that a rank has of a ``DTensor`` for one
rectangle, and reads and writes something else where it is made of parts of blocks. So does
``set_model_state_dict`` with what rank 0 has. ``know_strided_parts`` says it to both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

from tensoropt_torch.values.parts import Part, parts_of, take_part
from tensoropt_torch.values.placements import dtensor_of, is_strided


@functools.cache
def know_strided_parts() -> None:
    """From now on, in this process, parts of these tensors are written and read as they are;
    other tensors go the way that they went."""
    from torch.distributed import _state_dict_utils

    tensors: Any = DTensor
    tensors.__create_write_items__ = _or_strided(tensors.__create_write_items__, _write_items)
    tensors.__create_chunk_list__ = _or_strided(tensors.__create_chunk_list__, _chunks)
    tensors.__get_tensor_shard__ = _or_strided(tensors.__get_tensor_shard__, _shard)
    states: Any = _state_dict_utils
    states._distribute_tensors = _with_strided_first(states._distribute_tensors)


def _or_strided(method: Callable[..., Any], of_strided: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(tensor: DTensor, *args: Any) -> Any:
        return (of_strided if is_strided(tensor.placements) else method)(tensor, *args)

    return call


def _parts(tensor: DTensor) -> list[Part]:
    tensor._raise_if_contains_partial_placements()
    return parts_of(tensor.shape, tensor.device_mesh, tensor.placements)


def _offsets(part: Part) -> torch.Size:
    return torch.Size(extent.start for extent in part)


def _chunks(tensor: DTensor) -> list[Any]:
    """In place of ``__create_chunk_list__``: a rectangle of each block."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [
        ChunkStorageMetadata(
            offsets=_offsets(part), sizes=torch.Size(e.stop - e.start for e in part)
        )
        for part in _parts(tensor)
    ]


def _write_items(tensor: DTensor, name: str, _: Any) -> list[Any]:
    """In place of ``__create_write_items__``."""
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    properties = TensorProperties.create_from_tensor(tensor.to_local())
    return [
        WriteItem(
            index=MetadataIndex(name, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=tensor.size()),
        )
        for chunk in _chunks(tensor)
    ]


def _shard(tensor: DTensor, index: Any) -> torch.Tensor:
    """In place of ``__get_tensor_shard__``: a view of the rank's part."""
    (dim,) = {p.dim for p in tensor.placements if isinstance(p, _StridedShard)}
    local, begin = tensor.to_local(), 0
    for part in _parts(tensor):
        size = part[dim].stop - part[dim].start
        if _offsets(part) == index.offset:
            return local.narrow(dim, begin, size)
        begin += size
    raise ValueError(f"'{index.fqn}' has no part at {index.offset} on this rank")


def _with_strided_first(distribute: Callable[..., None]) -> Callable[..., None]:
    """In place of ``_distribute_tensors``, which leaves alone what is distributed already."""

    @functools.wraps(distribute)
    def call(
        states: dict[str, Any],
        names: list[str],
        device: torch.device,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        for name in names:
            state = states.get(name)
            if isinstance(state, tuple) and is_strided(state[0].placements):
                states[name] = _distributed(*state)
        distribute(states, names, device, group)

    return call


def _distributed(own: DTensor, whole: torch.Tensor) -> DTensor:
    part = take_part(whole, own.device_mesh, own.placements)
    if own.is_meta:
        return dtensor_of(part.clone(), own.device_mesh, own.placements, own)
    own.to_local().copy_(part)
    return own
