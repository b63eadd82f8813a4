"""What people write by hand: DDP, FSDP2, and tensor parallelism of DTensor with either.

Each takes a model and gives the module that a rank trains. ``data_groups`` says how many
different shares of the batch the ranks are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from benchmarks.models.small import SmallModel

TENSOR_RANKS = 2  # where tensor parallelism is within data parallelism


@dataclass(frozen=True)
class Peer:
    """A way to train."""

    make: Callable[[nn.Module], nn.Module]
    data_groups: int


def peers(small: SmallModel) -> dict[str, Peer]:
    """Those that there are for a model on so many ranks, by name."""
    ranks = dist.get_world_size()

    def sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for block in small.blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    found = {
        "DDP": Peer(DistributedDataParallel, ranks),
        "FSDP2": Peer(lambda model: sharded(model, init_device_mesh("cpu", (ranks,))), ranks),
    }
    styles = small.styles
    if styles is None:
        return found

    def split(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        return parallelize_module(model, mesh, styles(model))

    def split_and_replicated(model: nn.Module) -> nn.Module:
        mesh = _mesh()
        model = split(model, mesh["tensor"])
        return DistributedDataParallel(model, device_mesh=mesh["data"])

    def split_and_sharded(model: nn.Module) -> nn.Module:
        mesh = _mesh()
        return sharded(split(model, mesh["tensor"]), mesh["data"])

    found["TP"] = Peer(lambda model: split(model, init_device_mesh("cpu", (ranks,))), 1)
    if ranks > TENSOR_RANKS:
        groups = ranks // TENSOR_RANKS
        found["TP x DP"] = Peer(split_and_replicated, groups)
        found["TP x FSDP2"] = Peer(split_and_sharded, groups)
    return found


def _mesh() -> DeviceMesh:
    shape = dist.get_world_size() // TENSOR_RANKS, TENSOR_RANKS
    return init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
