"""What people write by hand: DDP, FSDP2, and tensor parallelism of DTensor with either.

Each takes a model of ``blocks`` and gives the module that a rank trains. ``data_groups``
says how many different shares of the batch the ranks are given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

# Which linear layers are split by columns and by rows: names within the model.
Styles = Callable[[nn.Module], dict[str, ParallelStyle]]
TENSOR_RANKS = 2  # where tensor parallelism is within data parallelism


@dataclass(frozen=True)
class Peer:
    """A way to train."""

    make: Callable[[nn.Module, Styles], nn.Module]
    data_groups: int


def peers() -> dict[str, Peer]:
    """Those that there are on so many ranks, by name."""
    ranks = dist.get_world_size()
    found = {
        "DDP": Peer(lambda model, _: DistributedDataParallel(model), ranks),
        "FSDP2": Peer(lambda model, _: _sharded(model, init_device_mesh("cpu", (ranks,))), ranks),
        "TP": Peer(lambda m, s: _split(m, s, init_device_mesh("cpu", (ranks,))), 1),
    }
    if ranks > TENSOR_RANKS:
        groups = ranks // TENSOR_RANKS
        found["TP x DP"] = Peer(_split_and_replicated, groups)
        found["TP x FSDP2"] = Peer(_split_and_sharded, groups)
    return found


def gpt_styles(model: nn.Module) -> dict[str, ParallelStyle]:
    """Heads and hidden features are split, and the vocabulary, as in PyTorch's tutorial."""
    styles: dict[str, ParallelStyle] = {
        "wte": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    columns, rows = ("attn.query", "attn.key", "attn.value", "mlp.fc"), ("attn.proj", "mlp.proj")
    for index in range(len(model.blocks)):  # type: ignore[arg-type]
        styles |= {f"blocks.{index}.{name}": ColwiseParallel() for name in columns}
        styles |= {f"blocks.{index}.{name}": RowwiseParallel() for name in rows}
    return styles


def wide_styles(model: nn.Module) -> dict[str, ParallelStyle]:
    """Layers in turn by columns and by rows."""
    return {
        f"blocks.{index}.0": RowwiseParallel() if index % 2 else ColwiseParallel()
        for index in range(len(model.blocks))  # type: ignore[arg-type]
    }


def _sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _split(model: nn.Module, styles: Styles, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(model, mesh, styles(model))


def _mesh() -> DeviceMesh:
    shape = dist.get_world_size() // TENSOR_RANKS, TENSOR_RANKS
    return init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))


def _split_and_replicated(model: nn.Module, styles: Styles) -> nn.Module:
    mesh = _mesh()
    return DistributedDataParallel(_split(model, styles, mesh["tensor"]), device_mesh=mesh["data"])


def _split_and_sharded(model: nn.Module, styles: Styles) -> nn.Module:
    mesh = _mesh()
    return _sharded(_split(model, styles, mesh["tensor"]), mesh["data"])
