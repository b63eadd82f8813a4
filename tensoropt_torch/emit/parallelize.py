"""``parallelize``: a plan becomes a module on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tensoropt_torch.emit.module import ParallelModule
from tensoropt_torch.emit.rank import RankPart, mesh_axes_of
from tensoropt_torch.emit.weights import WeightLoader, WeightSource
from tensoropt_torch.errors import TensorOptError
from tensoropt_torch.frontend import CapturedModel, as_module
from tensoropt_torch.plan import Plan
from tensoropt_torch.runtime.agreement import agree_on_model, agree_or_raise, on_all_ranks
from tensoropt_torch.runtime.groups import AxisGroups


@dataclass(frozen=True)
class RankContext:
    """The base mesh and its process groups on this rank.

    Several modules may share one, so that groups are made once.
    """

    sizes: tuple[int, ...]
    device: torch.device
    mesh: DeviceMesh
    groups: AxisGroups

    @property
    def num_devices(self) -> int:
        """The product of the mesh axes."""
        return math.prod(self.sizes)

    @staticmethod
    def make(sizes: Sequence[int], device: torch.device) -> RankContext:
        """Collective. A single device is a mesh with one axis of size 1."""
        shape, names = mesh_axes_of(sizes)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
        return RankContext(tuple(sizes), device, mesh, AxisGroups(sizes, device.type))


def parallelize(
    model: nn.Module | torch.export.ExportedProgram,
    captured: CapturedModel,
    plan: Plan,
    device: torch.device,
    context: RankContext | None = None,
    weights: WeightSource | None = None,
    *,
    one_process_random: bool = False,
) -> ParallelModule:
    """The module that runs ``plan`` on this rank.

    Collective: every rank of the default process group calls it with the same
    model and plan. Parameters and buffers are those of rank 0, or what ``weights``
    gives where the model is on the meta device. With ``one_process_random`` random
    operators draw what one process draws.

    Raises:
        TensorOptError: on every rank, if the plan does not fit the number of
            processes, the model, or the other ranks.
    """
    model = as_module(model)
    on_all_ranks(lambda: _check_world(plan))
    agree_on_model(captured)
    agree_or_raise("plan", plan.hash, "plan once and broadcast, or load the same file")
    on_all_ranks(lambda: plan.check_model(captured))
    part = RankPart(plan, captured, dist.get_rank())
    context = context or RankContext.make(part.sizes, device)
    context.groups.create(part.axis_sets)
    emitter = part.emitter(device, context.groups.name, one_process_random=one_process_random)
    rank_graph = emitter.emit()
    loader = WeightLoader(
        model,
        {source.names[0]: part.placements(source) for source in captured.parameters},
        {source.names[0]: source.names for source in captured.parameters},
        context.mesh,
        device,
    )
    values = loader.load(weights or WeightSource(), captured.constants)
    seeds = _seed_generator() if emitter.uses_seeds else None
    saved = model.state_dict().keys()
    buffers = {name: name in saved for name, _ in model.named_buffers(remove_duplicate=False)}
    module = part.module(rank_graph, values, buffers, seeds)
    _check_complete(model, module)
    return module


def _check_world(plan: Plan) -> None:
    world = dist.get_world_size()
    if world != plan.num_devices:
        raise TensorOptError(
            f"the plan is for {plan.num_devices} devices, but {world} processes run; start "
            f"torchrun with {plan.num_devices} processes in all, or plan again for {world}"
        )


def _check_complete(model: nn.Module, parallel: ParallelModule) -> None:
    names, own = (
        {name for name, _ in module.named_parameters(remove_duplicate=False)}
        for module in (parallel, model)
    )
    assert own <= names, f"parameters without a layout: {sorted(own - names)}"


def _seed_generator() -> torch.Generator:
    """One stream of step seeds for all ranks, started from rank 0's default."""
    seed = torch.randint(2**62, ())
    if dist.get_world_size() > 1:
        holder = [int(seed)]
        dist.broadcast_object_list(holder, 0)
        seed = torch.tensor(holder[0])
    return torch.Generator().manual_seed(int(seed))
